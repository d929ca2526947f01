from typing import Any

CLIARGS: dict[str, Any]
