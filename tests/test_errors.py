"""Errors cross process borders whole: a worker's reason must reach the driver with its hint."""

import pickle

from tpuctl.errors import ExitCode, RecipeError, TpuctlError, Where


class PickyError(TpuctlError):
    """A class whose constructor takes other arguments than the base's."""

    exit_code = ExitCode.UNAVAILABLE

    def __init__(self, *, step: int) -> None:
        super().__init__(f"failed at step {step}", hint="try again")
        self.step = step


def test_error_pickled_keeps_message_hint_place_and_class() -> None:
    error = RecipeError("unknown key", hint="did you mean x?", where=Where(file="r.toml", line=3, key="train.y"))
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is RecipeError
    assert (copy.message, copy.hint, copy.where) == ("unknown key", "did you mean x?", error.where)
    assert str(copy) == "unknown key"


def test_error_with_its_own_constructor_pickled_keeps_its_facts() -> None:
    copy = pickle.loads(pickle.dumps(PickyError(step=7)))
    assert (copy.step, copy.message, copy.exit_code) == (7, "failed at step 7", ExitCode.UNAVAILABLE)
