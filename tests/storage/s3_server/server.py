"""A real S3 server for tests: versitygw over a directory, built once from the pinned Go module beside this file."""

from __future__ import annotations

import os
import secrets
import shutil
import socket
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

import obstore
from obstore.exceptions import BaseError
from obstore.store import S3Store

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[2]
PACKAGE = "github.com/versity/versitygw/cmd/versitygw"
VERSION = "1.8.0"
BINARY = ROOT / ".cache" / "bin" / f"versitygw-v{VERSION}"
BUILD_SECONDS = 900.0
"""Once, where the binary is missing: two minutes of one processor, and several times that on a busy machine."""
START_SECONDS = 20.0


class NoS3Server(Exception):
    """versitygw is not in the cache and there is no Go to build it with."""


class S3ServerBroken(Exception):
    """versitygw could not be built or started; says why."""


@dataclass(frozen=True, kw_only=True)
class S3Server:
    """A running server."""

    process: subprocess.Popen[bytes]
    directory: Path
    config: dict[str, str]
    """For obstore: endpoint, region and keys."""

    def make_bucket(self) -> str:
        """Make a bucket: for versitygw a directory."""
        name = f"bucket-{secrets.token_hex(4)}"
        (self.directory / name).mkdir()
        return name

    def stop(self) -> None:
        """End it."""
        self.process.terminate()
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait(10)


def provide() -> Path:
    """Return the server's binary, building it where it is missing.

    Raises: NoS3Server.
    """
    if BINARY.exists():
        return BINARY
    go = shutil.which("go")
    if go is None:
        raise NoS3Server("no Go on PATH to build versitygw with")
    BINARY.parent.mkdir(parents=True, exist_ok=True)
    partial = BINARY.with_name(f"{BINARY.name}.{os.getpid()}.part")
    command = [
        go,
        "build",
        "-mod=readonly",
        "-trimpath",
        "-buildvcs=false",
        "-ldflags=-s -w",
        "-o",
        str(partial),
        PACKAGE,
    ]
    try:
        done = subprocess.run(
            command,
            cwd=HERE,
            env={**os.environ, "CGO_ENABLED": "0", "GOFLAGS": "", "GOWORK": "off"},
            capture_output=True,
            text=True,
            timeout=BUILD_SECONDS,
            check=False,
        )
        if done.returncode != 0:
            raise S3ServerBroken(f"go build of versitygw failed: {done.stderr.strip()[-300:]}")
        partial.replace(BINARY)
    except subprocess.TimeoutExpired as error:
        raise S3ServerBroken(f"go build of versitygw did not end within {BUILD_SECONDS:.0f} s") from error
    finally:
        partial.unlink(missing_ok=True)
    return BINARY


def start(directory: Path) -> S3Server:
    """Start a server over ``directory`` on a free port and wait until it answers."""
    binary = provide()
    directory.mkdir(parents=True, exist_ok=True)
    sidecar = directory.with_name("sidecar")
    sidecar.mkdir()
    access, secret = "archipelago", secrets.token_hex(16)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with (directory.parent / "s3.log").open("ab") as log:
        process = subprocess.Popen(
            [str(binary), "--port", f"127.0.0.1:{port}", "posix", "--sidecar", str(sidecar), str(directory)],
            env={**os.environ, "ROOT_ACCESS_KEY": access, "ROOT_SECRET_KEY": secret},
            stdout=log,
            stderr=log,
            stdin=subprocess.DEVNULL,
        )
    config = {
        "endpoint": f"http://127.0.0.1:{port}",
        "region": "us-east-1",
        "access_key_id": access,
        "secret_access_key": secret,
    }
    server = S3Server(process=process, directory=directory, config=config)
    _wait(server)
    return server


def _wait(server: S3Server) -> None:
    bucket = server.make_bucket()
    store = S3Store(
        bucket,
        config=server.config,  # type: ignore[arg-type]
        client_options={"allow_http": True},
        retry_config={"max_retries": 0},
    )
    end = time.monotonic() + START_SECONDS
    while True:
        try:
            obstore.put(store, "probe", b"x")
            return
        except BaseError as error:
            if time.monotonic() > end or server.process.poll() is not None:
                server.stop()
                raise RuntimeError("versitygw does not answer; see s3.log beside its directory") from error
            time.sleep(0.05)
