"""The hub that open_clip and timm fetch weights from."""
from contextlib import contextmanager

import huggingface_hub

from support.command import quiet


@contextmanager
def fetching():
    """Within it libraries fetch weights, and are quiet. Without a network they use their cache.

    They would try again for a minute before they say that there is no network.
    """
    try:
        huggingface_hub.get_hf_file_metadata(huggingface_hub.constants.ENDPOINT, timeout=5)
    except huggingface_hub.errors.HfHubHTTPError:      # it has answered
        pass
    except Exception:                                  # another class in each version
        huggingface_hub.constants.HF_HUB_OFFLINE = True
    with quiet():
        yield
