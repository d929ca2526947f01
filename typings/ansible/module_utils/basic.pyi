from typing import Any, NoReturn

class AnsibleModule:
    params: dict[str, Any]
    check_mode: bool
    no_log_values: set[str]
    _diff: bool
    def __init__(
        self,
        argument_spec: dict[str, Any],
        supports_check_mode: bool = ...,
        mutually_exclusive: list[list[str]] | None = ...,
        required_if: list[Any] | None = ...,
        required_together: list[list[str]] | None = ...,
    ) -> None: ...
    def exit_json(self, **kwargs: Any) -> NoReturn: ...
    def fail_json(self, msg: str, **kwargs: Any) -> NoReturn: ...
    def warn(self, warning: str) -> None: ...
    def run_command(
        self, args: list[str], check_rc: bool = ..., data: str | bytes | None = ..., cwd: str | None = ...
    ) -> tuple[int, str, str]: ...
