"""What went wrong with a hub, as sentences."""

from typing import NamedTuple


class Problem(NamedTuple):
    """Why a repository cannot be fetched."""

    reason: str
    """A clause that says what is the matter."""
    rest: str
    """What makes a sentence of it: the remedy."""

    @property
    def sentence(self) -> str:
        return self.reason + self.rest


def explain(error: BaseException, name: str, revision: str | None) -> Problem:
    """What an exception of huggingface_hub, of its HTTP client or of the file system means for this repository."""
    from huggingface_hub import constants, errors

    hub, cache = constants.ENDPOINT, constants.HF_HUB_CACHE
    wanted = name if revision is None else f"{name} at revision {revision!r}"
    kinds = {kind.__name__ for kind in type(error).__mro__}
    match error:
        case errors.LocalEntryNotFoundError(__cause__=BaseException() as cause):
            return explain(cause, name, revision)
        case errors.HFValidationError():
            return Problem(
                f"{name!r} is neither a path on this machine nor a hub id",
                f", which has the form organisation/name ({_line(error)})",
            )
        case errors.OfflineModeIsEnabled():
            return Problem(
                "HF_HUB_OFFLINE is set",
                f", and {wanted} is neither a path on this machine nor in the cache {cache}; "
                "unset it to download the model",
            )
        case errors.HfHubHTTPError():
            return _explain_answer(error, name, revision)
        case OSError(errno=int(), strerror=str(text)) if not isinstance(error, ConnectionError):
            return Problem(
                f"the cache {cache} cannot be used ({text})",
                f", and {wanted} has to go there; see to its space and permissions, or set HF_HOME to another folder",
            )
    if kinds & {"ConnectionError", "TransportError"}:  # The latter is the HTTP client's, which we do not know.
        return Problem(
            f"{hub} cannot be reached ({type(error).__name__}: {_line(error)})",
            f", and {wanted} is neither a path on this machine nor whole in the cache {cache}; "
            "check the network, or HF_ENDPOINT, if that is set",
        )
    return Problem(
        f"{wanted} cannot be fetched from {hub} ({type(error).__name__}: {_line(error)})",
        "; try again, or give a path on this machine",
    )


def _explain_answer(error: Exception, name: str, revision: str | None) -> Problem:
    """For HfHubHTTPError: the hub has answered, with a refusal."""
    from huggingface_hub import constants, errors

    hub = constants.ENDPOINT
    match error:
        case errors.GatedRepoError():
            return Problem(
                f"{name} is gated",
                f"; accept its licence at {hub}/{name}, then set HF_TOKEN to a token of that account "
                "(or run `hf auth login`)",
            )
        case errors.RepositoryNotFoundError():
            return Problem(
                f"there is no path {name!r} on this machine and no repository of that name at {hub}, or it is private",
                "; check the name, or set HF_TOKEN to a token that may read it (or run `hf auth login`)",
            )
        case errors.RevisionNotFoundError():
            return Problem(
                f"{name} has no revision {revision or 'main'!r}", f"; give a branch, a tag or a commit of {hub}/{name}"
            )
        case errors.RemoteEntryNotFoundError():
            return Problem(f"{name} was changed while it was being fetched", "; try again")
    assert isinstance(error, errors.HfHubHTTPError)
    status = error.response.status_code
    if status in (401, 403):
        remedy = "check HF_TOKEN: the token may be wrong, or may not read this repository"
    elif status == 429:
        remedy = "wait a while; with HF_TOKEN set, more requests are allowed"
    else:
        remedy = "try again later, or give a path on this machine"
    return Problem(f"{hub} answered with status {status} for {name}", f"; {remedy}")


def _line(error: BaseException) -> str:
    """The first line of its message."""
    return str(error).strip().split("\n", 1)[0].rstrip(".")
