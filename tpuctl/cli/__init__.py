"""The command line. The only room that makes words out of errors."""
