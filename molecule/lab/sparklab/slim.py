"""Less to load: an engine that holds the lower layers of an image needs only the others.

`docker save` writes every layer. `docker load` opens no file of a layer that its engine holds already, so those files
can be taken out of the archive: seen with 20.10 saving and 26.1 loading, 0.3 s in place of 119 s for a layer of 2.7 GB.
"""

from __future__ import annotations

import hashlib
import tarfile
import tempfile
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import IO

BLOCK = 1 << 20


def shared_layers(wanted: Sequence[str], held: Iterable[Sequence[str]]) -> int:
    """How many of the lowest layers of ``wanted`` one of the ``held`` images has too. Layers are digests, lowest first.

    An engine knows a layer by all that is below it, so equal layers above different ones do not count.
    """
    most = 0
    for layers in held:
        same = 0
        while same < min(len(wanted), len(layers)) and wanted[same] == layers[same]:
            same += 1
        most = max(most, same)
    return most


def strip(source: IO[bytes], target: Path, known: Iterable[str], count: Callable[[int], None]) -> None:
    """Copy an archive of `docker save` without the layers whose digests are ``known``.

    Nothing in the archive says which file is which layer before its end, so each is read and compared by digest. A
    compressed layer has another digest and is kept: more to load, and right all the same.
    """
    drop = set(known)
    with (
        tarfile.open(fileobj=source, mode="r|", bufsize=BLOCK) as whole,
        tarfile.open(target, "w", format=tarfile.PAX_FORMAT) as slim,
    ):
        for member in whole:
            content = whole.extractfile(member) if member.isfile() else None
            if content is None:
                slim.addfile(member)
                continue
            digest = hashlib.sha256()
            with tempfile.TemporaryFile(dir=target.parent) as spool:
                while block := content.read(BLOCK):
                    digest.update(block)
                    spool.write(block)
                    count(len(block))
                if f"sha256:{digest.hexdigest()}" not in drop:
                    spool.seek(0)
                    slim.addfile(member, spool)
