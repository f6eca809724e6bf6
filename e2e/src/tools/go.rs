//! Compiles the Go programs of one pinned module. Must never take a program from elsewhere: what runs is what go.sum says.

use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::Stdio;

use super::recipe::{GoRecipe, Tool};
use super::{ToolError, io_error};
use crate::command::{Command, CommandError};
use crate::progress::Step;
use crate::workspace;

/// The oldest Go that builds them: containerd's own go.mod asks for it.
const MINIMUM: (u32, u32, u32) = (1, 26, 6);

/// What `go version` says, or how to get a Go that will do.
pub async fn go_version() -> Result<String, ToolError> {
    let version = Command::new("go").env("GOTOOLCHAIN", "local").arg("version").run().await;
    let version =
        version.map_err(|_| ToolError::Go("there is none on the search path; see https://go.dev/dl".into()))?;
    match parse_go_version(&version) {
        Some(found) if found >= MINIMUM => Ok(version),
        Some(_) | None => Err(ToolError::Go(format!("found {}", version.trim()))),
    }
}

/// The first one of a minor, and those before it, count as its patch 0.
fn parse_go_version(text: &str) -> Option<(u32, u32, u32)> {
    let mut parts = text.strip_prefix("go version go")?.split(['.', ' ', 'r', 'b']);
    let (major, minor) = (parts.next()?.parse().ok()?, parts.next()?.parse().ok()?);
    Some((major, minor, parts.next().and_then(|patch| patch.parse().ok()).unwrap_or(0)))
}

/// Compiles the programs of a recipe into a folder.
pub(super) fn compile(tool: Tool, recipe: &GoRecipe, bin: &Path, step: &mut Step) -> Result<(), ToolError> {
    let mut output = bin.as_os_str().to_owned();
    output.push("/");
    let command = Command::new("go")
        .folder(&workspace::tool_module(tool.name()))
        // Nothing of the user's Go settings may change what is built.
        .env("GOFLAGS", "")
        .env("GOWORK", "off")
        .env("GOTOOLCHAIN", "local")
        .env("CGO_ENABLED", if recipe.cgo { "1" } else { "0" })
        .args(recipe.flags())
        .args(["-v", "-o"])
        .arg(output)
        .args(recipe.packages);
    run(&command, step).map_err(|source| ToolError::Build { tool, source })?;
    if let Some((name, called)) = recipe.rename {
        std::fs::rename(bin.join(name), bin.join(called)).map_err(io_error("rename", &bin.join(name)))?;
    }
    Ok(())
}

/// Runs `go build -v` and shows each package as it is compiled.
fn run(command: &Command, step: &mut Step) -> Result<(), CommandError> {
    let not_started = |source| CommandError::Spawn { line: command.to_string(), source };
    let mut process = command.to_std();
    let mut child = process.stdin(Stdio::null()).stderr(Stdio::piped()).spawn().map_err(not_started)?;
    let mut printed = String::new();
    if let Some(stderr) = child.stderr.take() {
        let stderr: Box<dyn Read> = Box::new(stderr);
        for (number, line) in BufReader::new(stderr).lines().map_while(Result::ok).enumerate() {
            step.note(format_args!("{} packages, now {line}", number + 1));
            printed.push_str(&line);
            printed.push('\n');
        }
    }
    let status = child.wait().map_err(not_started)?;
    if status.success() { Ok(()) } else { Err(command.failed(status, &printed)) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::progress::Progress;

    #[test]
    fn go_versions_are_read() {
        assert_eq!(parse_go_version("go version go1.26.8 linux/amd64"), Some((1, 26, 8)));
        assert_eq!(parse_go_version("go version go1.27rc1 linux/amd64"), Some((1, 27, 0)));
        assert_eq!(parse_go_version("go version devel"), None);
    }

    #[test]
    fn a_failed_build_shows_what_go_said() {
        let command = Command::new("sh").args(["-c", "echo no such package >&2; exit 1"]);
        let error = run(&command, &mut Progress::new().step("test")).unwrap_err().to_string();
        assert!(error.contains("no such package"), "{error}");
    }
}
