"""Upload what was exported to the Hugging Face Hub, or another server of its API (``HF_ENDPOINT``)."""

import os
import re
from pathlib import Path

from sparring.core import InputError, SparringError
from sparring.core.errors import first_line

TOKEN = "HF_TOKEN"
_REPOSITORY = re.compile(r"[\w-][\w.-]*/[\w-][\w.-]*")
_UNAUTHORISED, _FORBIDDEN = 401, 403


def check_push(repository: str) -> str:
    """Return the user's token, after the checks that need no network.

    Raises:
        InputError: the repository's name is impossible, or there is no token.
    """
    if not _REPOSITORY.fullmatch(repository):
        raise InputError("--push", f"{ascii(repository)[:100]} is no name of a repository", "Write USER/NAME")
    token = os.environ.get(TOKEN, "")
    if not token:
        fix = f"Set {TOKEN} to one with the right to write, from the settings of your account"
        raise InputError("--push", f"there is no token in the environment variable {TOKEN}", fix)
    return token


def push(directory: Path, repository: str, token: str) -> str:
    """Upload a directory into a repository, which is made, private, if there is none; return its address.

    Raises:
        InputError: the hub refuses the token.
        SparringError: the hub cannot be reached, or refuses the upload.
    """
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HfHubHTTPError
    from huggingface_hub.utils.tqdm import disable_progress_bars

    disable_progress_bars()
    api = HfApi(endpoint=os.environ.get("HF_ENDPOINT"), token=token)
    try:
        made = api.create_repo(repository, private=True, exist_ok=True)
        api.upload_folder(
            repo_id=made.repo_id, folder_path=directory, commit_message="Upload from sparring export"
        )
    except HfHubHTTPError as error:
        status = error.response.status_code
        if status in (_UNAUTHORISED, _FORBIDDEN):
            problem = f"the hub refuses the token in {TOKEN} for {repository} (status {status})"
            raise InputError("--push", problem, "Take one with the right to write there") from error
        raise SparringError(f"the hub refused the upload to {repository} (status {status})") from error
    except Exception as error:  # of either of two HTTP libraries, whose errors have no common class
        reason = first_line(error).replace(token, "...")
        raise SparringError(f"{repository} cannot be uploaded to {api.endpoint} ({reason})") from error
    return str(made)
