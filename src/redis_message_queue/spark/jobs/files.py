"""The few file operations that an archive needs, on a local path or on whatever Hadoop has a file system for."""

import contextlib
import os
import shutil
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import unquote, urlsplit

from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]  # it has no stubs

from redis_message_queue import checks
from redis_message_queue.errors import ConfigurationError


@dataclass(frozen=True, slots=True)
class Listed:
    """A name in a directory."""

    name: str
    is_directory: bool
    bytes: int
    modified: float  # seconds since 1970


class Files(Protocol):
    """Paths are relative to a root, with slashes; a directory comes into being with its first file."""

    root: str

    def list(self, path: str) -> list[Listed]: ...

    def read(self, path: str) -> bytes: ...

    def create(self, path: str, content: bytes) -> bool:
        """The whole file or nothing; False if there is one already, which stays."""
        ...

    def write(self, path: str, content: bytes) -> None:
        """The whole file or nothing, instead of one that may be there."""
        ...

    def remove(self, path: str) -> None: ...


class LocalFiles:
    """A directory of this machine."""

    def __init__(self, root: str) -> None:
        self.root = os.path.abspath(root)

    def list(self, path: str) -> list[Listed]:
        try:
            found = sorted(Path(self.root, path).iterdir())
        except FileNotFoundError:
            return []
        listed = []
        for one in found:
            with contextlib.suppress(FileNotFoundError):  # removed meanwhile
                status = one.stat()
                listed.append(Listed(one.name, one.is_dir(), status.st_size, status.st_mtime))
        return listed

    def read(self, path: str) -> bytes:
        return Path(self.root, path).read_bytes()

    def create(self, path: str, content: bytes) -> bool:
        """By a hard link, which fails where the name is taken; a rename would replace what is there."""
        temporary = self._temporary(path, content)
        try:
            os.link(temporary, Path(self.root, path))
        except FileExistsError:
            return False
        finally:
            temporary.unlink()
        _sync(Path(self.root, path).parent)
        return True

    def write(self, path: str, content: bytes) -> None:
        os.replace(self._temporary(path, content), Path(self.root, path))

    def _temporary(self, path: str, content: bytes) -> Path:
        target = Path(self.root, path)
        target.parent.mkdir(parents=True, exist_ok=True)
        temporary = target.with_name(f"_{uuid.uuid4().hex}.tmp")
        with temporary.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        return temporary

    def remove(self, path: str) -> None:
        target = Path(self.root, path)
        if target.is_dir():
            shutil.rmtree(target, ignore_errors=True)
        else:
            target.unlink(missing_ok=True)


def _sync(directory: Path) -> None:
    """A name is on disk when its directory is."""
    handle = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


class HadoopFiles:
    """A directory of any scheme that Spark's Hadoop knows."""

    def __init__(self, spark: Any, root: str) -> None:
        self.root = root.rstrip("/")
        self._jvm = spark._jvm
        conf = spark._jsc.hadoopConfiguration()
        uri = self._jvm.java.net.URI.create(self.root)
        self._files = self._jvm.org.apache.hadoop.fs.FileSystem.get(uri, conf)
        self._context = self._jvm.org.apache.hadoop.fs.FileContext.getFileContext(uri, conf)

    def _path(self, path: str) -> Any:
        return self._jvm.org.apache.hadoop.fs.Path(f"{self.root}/{path}" if path else self.root)

    def list(self, path: str) -> list[Listed]:
        target = self._path(path)
        if not self._files.exists(target):
            return []
        found = [
            Listed(one.getPath().getName(), one.isDirectory(), one.getLen(), one.getModificationTime() / 1000)
            for one in self._files.listStatus(target)
        ]
        return sorted(found, key=lambda one: one.name)

    def read(self, path: str) -> bytes:
        stream = self._files.open(self._path(path))
        try:
            return bytes(stream.readAllBytes())
        finally:
            stream.close()

    def create(self, path: str, content: bytes) -> bool:
        return self._put(path, content, self._jvm.org.apache.hadoop.fs.Options.Rename.NONE)

    def write(self, path: str, content: bytes) -> None:
        self._put(path, content, self._jvm.org.apache.hadoop.fs.Options.Rename.OVERWRITE)

    def _put(self, path: str, content: bytes, how: Any) -> bool:
        target = self._path(path)
        temporary = self._jvm.org.apache.hadoop.fs.Path(target.getParent(), f"_{uuid.uuid4().hex}.tmp")
        stream = self._files.create(temporary, False)
        try:
            stream.write(bytearray(content))
        finally:
            stream.close()
        rules = self._array(how)
        try:
            self._context.rename(temporary, target, rules)
        except Py4JJavaError as error:
            self._files.delete(temporary, False)
            if "FileAlreadyExists" in error.java_exception.getClass().getName():
                return False
            raise
        return True

    def _array(self, how: Any) -> Any:
        from pyspark import SparkContext

        gateway = SparkContext._gateway
        rules = gateway.new_array(self._jvm.org.apache.hadoop.fs.Options.Rename, 1)  # type: ignore[union-attr]
        rules[0] = how
        return rules  # what Java calls varargs

    def remove(self, path: str) -> None:
        self._files.delete(self._path(path), True)


def files_at(path: str, spark: Any = None) -> Files:
    """The files under a local path or a file: URL, or under any other URL through ``spark``."""
    checks.text("path", path)
    scheme = urlsplit(path).scheme if "://" in path or path.startswith("file:") else ""
    if scheme in ("", "file"):
        return LocalFiles(unquote(urlsplit(path).path) if scheme else path)
    if spark is None:
        raise ConfigurationError(f"a path of the scheme {scheme!r} needs a Spark session")
    return HadoopFiles(spark, path)
