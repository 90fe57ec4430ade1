"""The way to the stand-ins for clients whose server's name is fixed."""

from __future__ import annotations

import pytest
import requests

from tests.fakes.asking import Asking
from tests.fakes.drive.checking import checked_drive
from tests.fakes.proxy import certificates, connect_proxy


def test_a_client_believes_to_speak_to_google(tmp_path):
    """Through the proxy and with the authority trusted, www.googleapis.com is the server on loopback."""
    made = certificates(tmp_path)
    with checked_drive(tmp_path, tls=made.server) as drive, connect_proxy(drive.port) as proxy:
        headers = {"Authorization": f"Bearer {signed_in(drive)}"}
        options = {"proxies": {"https": proxy.url}, "verify": str(made.authority), "timeout": 30}
        url = "https://www.googleapis.com/drive/v3/about?fields=user/me"
        assert requests.get(url, headers=headers, **options).json() == {"user": {"me": True}}
        begun = requests.post(
            "https://www.googleapis.com/upload/drive/v3/files?uploadType=resumable", headers=headers, **options
        )
        assert begun.headers["Location"].startswith("https://www.googleapis.com/upload/drive/v3/files?")
        with pytest.raises(requests.exceptions.ProxyError):
            requests.get("https://example.com/", **options)
    assert set(proxy.led) == {"www.googleapis.com"}
    assert proxy.refused == ["example.com:443"]


def test_nobody_is_believed_without_the_authority(tmp_path):
    """The certificate is good for those only who were told to trust it."""
    made = certificates(tmp_path)
    with checked_drive(tmp_path, tls=made.server) as drive, connect_proxy(drive.port) as proxy:
        with pytest.raises(requests.exceptions.SSLError):
            requests.get("https://www.googleapis.com/", proxies={"https": proxy.url}, timeout=30)
        assert drive.requests() == []


def signed_in(drive):
    ask = Asking(drive)
    ask.get("/drive/v3/about", fields="user")
    return ask.token
