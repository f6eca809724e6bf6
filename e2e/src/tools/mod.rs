//! Builds the pinned Go tools into the cache, each once for each content of what goes into it. Must never take a
//! program from elsewhere: what runs is what go.sum says.

mod recipe;

use std::fs;
use std::io::{self, BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::Stdio;

use crate::command::{Command, CommandError};
use crate::debian::{self, DebianError};
use crate::progress::{Progress, Step};
use crate::workspace;
pub use recipe::{Etcd, Recipe, Tool, pinned_version};

/// The oldest Go that builds them.
const GO_MINIMUM: (u32, u32) = (1, 26);

/// Why a tool can't be built.
#[derive(Debug, thiserror::Error)]
pub enum ToolError {
    /// Go is missing or too old.
    #[error("Go 1.26 or newer is needed: {0}")]
    Go(String),
    /// The operating system lacks something.
    #[error(transparent)]
    Debian(#[from] DebianError),
    /// The build failed.
    #[error("failed to build {tool}")]
    Build {
        /// Which tool.
        tool: Tool,
        /// Why.
        source: CommandError,
    },
    /// A file could not be read or written.
    #[error("failed to {what} {}", path.display())]
    File {
        /// What was tried.
        what: &'static str,
        /// On which file or folder.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
}

/// A built tool.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Built {
    /// Which.
    pub tool: Tool,
    /// The hash of all that went into it.
    pub key: String,
    folder: PathBuf,
}

impl Built {
    /// The folder of its programs.
    pub fn bin(&self) -> PathBuf {
        self.folder.join("bin")
    }

    /// One of its programs.
    pub fn program(&self, name: &str) -> PathBuf {
        self.bin().join(name)
    }
}

/// What `go version` says, or how to get a Go that will do.
pub async fn go_version() -> Result<String, ToolError> {
    let version = Command::new("go").env("GOTOOLCHAIN", "local").arg("version").run().await;
    let version =
        version.map_err(|_| ToolError::Go("there is none on the search path; see https://go.dev/dl".into()))?;
    match parse_go_version(&version) {
        Some(found) if found >= GO_MINIMUM => Ok(version),
        Some(_) | None => Err(ToolError::Go(format!("found {}", version.trim()))),
    }
}

fn parse_go_version(text: &str) -> Option<(u32, u32)> {
    let mut parts = text.strip_prefix("go version go")?.split(['.', ' ', 'r', 'b']);
    Some((parts.next()?.parse().ok()?, parts.next()?.parse().ok()?))
}

/// Builds all that isn't built yet.
pub async fn build_all(progress: &Progress) -> Result<Vec<Built>, ToolError> {
    let mut built = vec![];
    for tool in Tool::ALL {
        built.push(build(tool, progress).await?);
    }
    Ok(built)
}

/// Builds one tool, unless it is built.
pub async fn build(tool: Tool, progress: &Progress) -> Result<Built, ToolError> {
    let built = locate(tool).await?;
    if built.folder.exists() {
        return Ok(built);
    }
    debian::ensure(tool.recipe().needs, progress).await?;
    let lock = lock(tool)?;
    if !built.folder.exists() {
        let mut step = progress.step(format_args!("{tool}"));
        let worked = built.clone();
        let work = tokio::task::spawn_blocking(move || compile(&worked, &mut step).map(|()| step));
        let finished = work.await.map_err(|error| io_error("build into", &built.folder)(io::Error::other(error)))?;
        finished?.done("built");
    }
    drop(lock);
    Ok(built)
}

/// Where a tool is or will be, by the hash of all that goes into it.
pub async fn locate(tool: Tool) -> Result<Built, ToolError> {
    let version = go_version().await?;
    let module = workspace::tool_module(tool.name());
    let read = |name: &str| {
        let path = module.join(name);
        fs::read(&path).map_err(io_error("read", &path))
    };
    let key = tool.recipe().key(&version, &read("go.mod")?, &read("go.sum")?);
    let folder = workspace::tools().join(format!("{tool}-{key}"));
    Ok(Built { tool, key, folder })
}

/// Keeps a second run from building the same tool at the same time.
fn lock(tool: Tool) -> Result<fs::File, ToolError> {
    let path = workspace::tools().join(format!("{tool}.lock"));
    fs::create_dir_all(workspace::tools()).map_err(io_error("create", &path))?;
    let file = fs::File::create(&path).map_err(io_error("create", &path))?;
    file.lock().map_err(io_error("lock", &path))?;
    Ok(file)
}

fn compile(built: &Built, step: &mut Step) -> Result<(), ToolError> {
    let recipe = built.tool.recipe();
    let partial = workspace::tools().join(format!("{}-{}.partial", built.tool, built.key));
    let bin = partial.join("bin");
    remove(&partial)?;
    fs::create_dir_all(&bin).map_err(io_error("create", &bin))?;
    let mut output = bin.clone().into_os_string();
    output.push("/");
    let command = Command::new("go")
        .folder(&workspace::tool_module(built.tool.name()))
        // Nothing of the user's Go settings may change what is built.
        .env("GOFLAGS", "")
        .env("GOWORK", "off")
        .env("GOTOOLCHAIN", "local")
        .env("CGO_ENABLED", if recipe.cgo { "1" } else { "0" })
        .args(recipe.flags())
        .args(["-v", "-o"])
        .arg(output)
        .args(recipe.packages);
    run_go(&command, step).map_err(|source| ToolError::Build { tool: built.tool, source })?;
    if let Some((name, called)) = recipe.rename {
        fs::rename(bin.join(name), bin.join(called)).map_err(io_error("rename", &bin.join(name)))?;
    }
    // Only a whole build gets the name that is looked for.
    fs::rename(&partial, &built.folder).map_err(io_error("rename", &partial))?;
    remove_older(built)
}

/// Runs `go build -v` and shows each package as it is compiled.
fn run_go(command: &Command, step: &mut Step) -> Result<(), CommandError> {
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

/// Removes what earlier contents of the same tool's module left, so that the cache doesn't grow for ever.
fn remove_older(built: &Built) -> Result<(), ToolError> {
    let folder = workspace::tools();
    let prefix = format!("{}-", built.tool);
    for entry in fs::read_dir(&folder).map_err(io_error("read", &folder))?.flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        let older = name.strip_prefix(&prefix).is_some_and(|key| key.len() == built.key.len() && key != built.key);
        if older {
            remove(&entry.path())?;
        }
    }
    Ok(())
}

fn remove(folder: &Path) -> Result<(), ToolError> {
    match fs::remove_dir_all(folder) {
        Err(source) if source.kind() != io::ErrorKind::NotFound => Err(io_error("remove", folder)(source)),
        Ok(()) | Err(_) => Ok(()),
    }
}

fn io_error(what: &'static str, path: &Path) -> impl FnOnce(io::Error) -> ToolError {
    let path = path.to_path_buf();
    move |source| ToolError::File { what, path, source }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn go_versions_are_read() {
        assert_eq!(parse_go_version("go version go1.26.8 linux/amd64"), Some((1, 26)));
        assert_eq!(parse_go_version("go version go1.27rc1 linux/amd64"), Some((1, 27)));
        assert_eq!(parse_go_version("go version devel"), None);
    }

    #[test]
    fn a_failed_build_shows_what_go_said() {
        let command = Command::new("sh").args(["-c", "echo no such package >&2; exit 1"]);
        let error = run_go(&command, &mut Progress::new().step("test")).unwrap_err().to_string();
        assert!(error.contains("no such package"), "{error}");
    }
}
