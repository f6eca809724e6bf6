//! Installs the programs of one pinned npm package. Must never take one from elsewhere, nor run a script of it: what runs is
//! what package-lock.json says, by its hash.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Stdio;

use super::recipe::{NpmRecipe, Tool};
use super::{ToolError, io_error};
use crate::command::{Command, CommandError};
use crate::workspace;

/// What is wanted.
pub(super) const PACKAGE: &str = "package.json";
/// What that comes to, package by package, each with its hash.
pub(super) const LOCK: &str = "package-lock.json";
/// The oldest Node.js that all the packages say they run on.
const MINIMUM: (u32, u32) = (20, 6);

/// Puts the packages into a folder, and their programs into its `bin`.
pub(super) fn install(tool: Tool, recipe: &NpmRecipe, folder: &Path) -> Result<(), ToolError> {
    for name in [PACKAGE, LOCK] {
        let from = workspace::tool_module(tool.name()).join(name);
        fs::copy(&from, folder.join(name)).map_err(io_error("copy", &from))?;
    }
    let command = Command::new("npm").folder(folder).args(NpmRecipe::FLAGS);
    output(&command).map_err(|source| ToolError::Build { tool, source })?;
    for program in recipe.programs {
        let link = folder.join("bin").join(program);
        // Relative, as the folder gets another name once it is whole.
        symlink(Path::new("../node_modules/.bin").join(program), &link).map_err(io_error("link", &link))?;
    }
    Ok(())
}

/// Demands a Node.js that runs them.
pub(super) fn demand_node() -> Result<(), ToolError> {
    let version = output(&Command::new("node").arg("--version"));
    let version = version.map_err(|_| ToolError::Node("there is none on the search path".into()))?;
    match parse_version(&version) {
        Some(found) if found >= MINIMUM => Ok(()),
        Some(_) | None => Err(ToolError::Node(format!("found {}", version.trim()))),
    }
}

fn parse_version(text: &str) -> Option<(u32, u32)> {
    let mut parts = text.trim().strip_prefix('v')?.split('.');
    Some((parts.next()?.parse().ok()?, parts.next()?.parse().ok()?))
}

/// What a program printed.
fn output(command: &Command) -> Result<String, CommandError> {
    let not_started = |source| CommandError::Spawn { line: command.to_string(), source };
    let output = command.to_std().stdin(Stdio::null()).output().map_err(not_started)?;
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    if output.status.success() {
        return Ok(text(&output.stdout));
    }
    Err(command.failed(output.status, &(text(&output.stdout) + &text(&output.stderr))))
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    #[test]
    fn node_versions_are_read() {
        assert_eq!(parse_version("v20.20.2\n"), Some((20, 20)));
        assert_eq!(parse_version("20.20.2"), None);
    }

    #[test]
    fn the_key_depends_on_all_that_decides_the_result() {
        let recipe = NpmRecipe { programs: &["a"] };
        let key = recipe.key(b"package", b"lock");
        assert_ne!(key, recipe.key(b"package2", b"lock"));
        assert_ne!(key, recipe.key(b"package", b"lock2"));
        assert_ne!(key, NpmRecipe { programs: &["b"] }.key(b"package", b"lock"));
    }

    #[test]
    fn each_package_is_pinned_by_its_hash_and_bound_to_no_registry() {
        let read = |name: &str| -> Value {
            let path = workspace::tool_module(Tool::Azurite.name()).join(name);
            serde_json::from_slice(&fs::read(path).unwrap()).unwrap()
        };
        let (package, lock) = (read(PACKAGE), read(LOCK));
        let wanted = package["dependencies"]["azurite"].as_str().unwrap();
        assert_eq!(lock["packages"]["node_modules/azurite"]["version"], wanted);
        for (name, entry) in lock["packages"].as_object().unwrap().iter().filter(|(name, _)| !name.is_empty()) {
            assert!(entry["integrity"].as_str().is_some_and(|hash| hash.starts_with("sha512-")), "{name}");
            assert!(entry.get("resolved").is_none(), "{name} names the registry it came from");
        }
    }
}
