//! Compiles the Go programs of one pinned module. Must never take a program from elsewhere: what runs is what go.sum says.

use std::path::Path;

use super::recipe::{GoRecipe, Tool};
use super::{ToolError, io_error};
use crate::command::Command;
use crate::compiler;
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
    compiler::run(&command, compiler::GO, step).map_err(|source| ToolError::Build { tool, source })?;
    if let Some((name, called)) = recipe.rename {
        std::fs::rename(bin.join(name), bin.join(called)).map_err(io_error("rename", &bin.join(name)))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn go_versions_are_read() {
        assert_eq!(parse_go_version("go version go1.26.8 linux/amd64"), Some((1, 26, 8)));
        assert_eq!(parse_go_version("go version go1.27rc1 linux/amd64"), Some((1, 27, 0)));
        assert_eq!(parse_go_version("go version devel"), None);
    }
}
