from __future__ import annotations

import ssl
import subprocess
import uuid
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from ammeter.shipper.http import Collector
from ammeter.wire import frames
from ammeter_server.config.settings import Settings, SettingsError
from tests.parts import need
from tests.server.feeding import serving

TOKEN = "f" * 40


@pytest.fixture
def client(tmp_path: Path) -> Iterator[httpx.Client]:
    with serving(tmp_path) as client:
        yield client


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    folder = tmp_path_factory.mktemp("tls")
    cert, key = str(folder / "cert.pem"), str(folder / "key.pem")
    command = [need("openssl"), "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    command += ["-days", "1", "-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1,DNS:localhost"]
    subprocess.run([*command, "-out", cert, "-keyout", key], check=True, capture_output=True)
    return cert, key


def test_with_a_certificate_it_speaks_tls_and_nothing_else(tmp_path: Path, certificate: tuple[str, str]) -> None:
    cert, key = certificate
    with serving(tmp_path, token=TOKEN, tls_cert=cert, tls_key=key) as plain:
        port = plain.base_url.port
        with httpx.Client(
            base_url=f"https://127.0.0.1:{port}", verify=ssl.create_default_context(cafile=cert)
        ) as client:
            answer = client.get("/livez")
            assert (200, "max-age=31536000") == (answer.status_code, answer.headers["strict-transport-security"])
            assert "Secure" in client.post("/api/v1/session", json={"token": TOKEN}).headers["set-cookie"]
        with pytest.raises(httpx.HTTPError):
            plain.get("/livez")


def test_the_agent_s_shipper_delivers_over_tls_and_to_nobody_it_cannot_trust(
    tmp_path: Path, certificate: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    cert, key = certificate
    run, stream = str(uuid.uuid4()), uuid.uuid4().hex
    batch = frames.Batch([frames.Hello(run, stream, frames.Schema(("loss",)), started=1)])
    with serving(tmp_path, token=TOKEN, tls_cert=cert, tls_key=key) as plain:
        url = f"https://127.0.0.1:{plain.base_url.port}"
        refused = Collector(url, TOKEN, lambda *_: None).send(run, stream, 0, 10, batch)
        monkeypatch.setenv("SSL_CERT_FILE", cert)
        taken = Collector(url, TOKEN, lambda *_: None).send(run, stream, 0, 10, batch)
    assert (0, None) == (refused.status, refused.offset)
    assert "certificate" in refused.detail.lower()
    assert (200, 10) == (taken.status, taken.offset)


def test_without_one_nobody_is_told_to_use_tls(client: httpx.Client) -> None:
    assert "strict-transport-security" not in client.get("/livez").headers


@pytest.mark.parametrize("given", [(True, False), (False, True), (True, True)])
def test_a_certificate_that_cannot_be_used_is_said_at_the_start(tmp_path: Path, given: tuple[bool, bool]) -> None:
    paths = []
    for name, there in zip(("cert", "key"), given, strict=True):
        (tmp_path / name).write_text("no PEM")
        paths.append(str(tmp_path / name) if there else "")
    with pytest.raises(SettingsError, match="AMMETER_SERVER_TLS_CERT"):
        Settings(tls_cert=paths[0], tls_key=paths[1])


def test_links_lead_to_where_it_speaks_tls(certificate: tuple[str, str]) -> None:
    cert, key = certificate
    assert "https://127.0.0.1:8480" == Settings(tls_cert=cert, tls_key=key).page_url
