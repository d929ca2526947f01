from typing import Any

class ActionBase:
    _task: Any
    _connection: Any
    _play_context: Any
    _loader: Any
    _templar: Any
    _display: Any
    _supports_check_mode: bool
    _supports_async: bool
    TRANSFERS_FILES: bool
    def run(self, tmp: str | None = ..., task_vars: dict[str, Any] | None = ...) -> dict[str, Any]: ...
    def _execute_module(
        self,
        module_name: str | None = ...,
        module_args: dict[str, Any] | None = ...,
        tmp: str | None = ...,
        task_vars: dict[str, Any] | None = ...,
        persist_files: bool = ...,
        delete_remote_tmp: bool | None = ...,
        wrap_async: bool = ...,
    ) -> dict[str, Any]: ...
