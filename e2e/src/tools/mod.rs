//! Builds the pinned tools into the cache, each once for each content of what goes into it. Must never take a program from
//! elsewhere: what runs is what the lock files say.

mod go;
mod npm;
mod recipe;

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use crate::command::CommandError;
use crate::debian::{self, DebianError};
use crate::progress::{Progress, Step};
use crate::workspace;
pub use go::go_version;
use recipe::Recipe;
pub use recipe::{Etcd, Tool, pinned_version};

/// Why a tool can't be built.
#[derive(Debug, thiserror::Error)]
pub enum ToolError {
    /// Go is missing or too old.
    #[error("Go 1.26.6 or newer is needed: {0}")]
    Go(String),
    /// Node.js is missing or too old.
    #[error("Node.js 20.6 or newer is needed, see https://nodejs.org: {0}")]
    Node(String),
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

/// Builds all that isn't built yet. What the machine lacks for any of it is told before the first is built, which takes
/// minutes.
pub async fn build_all(progress: &Progress) -> Result<Vec<Built>, ToolError> {
    let mut all = vec![];
    for tool in Tool::ALL {
        all.push(prepare(tool, progress).await?);
    }
    for built in &all {
        finish(built, progress).await?;
    }
    Ok(all)
}

/// Builds one tool, unless it is built.
pub async fn build(tool: Tool, progress: &Progress) -> Result<Built, ToolError> {
    let built = prepare(tool, progress).await?;
    finish(&built, progress).await?;
    Ok(built)
}

/// Builds what is prepared, unless it is built.
async fn finish(built: &Built, progress: &Progress) -> Result<(), ToolError> {
    if built.folder.exists() {
        return Ok(());
    }
    let lock = lock(built.tool)?;
    if !built.folder.exists() {
        let mut step = progress.step(format_args!("{}", built.tool));
        let worked = built.clone();
        let work = tokio::task::spawn_blocking(move || make(&worked, &mut step).map(|()| step));
        let finished = work.await.map_err(|error| io_error("build into", &built.folder)(io::Error::other(error)))?;
        finished?.done("built");
    }
    drop(lock);
    Ok(())
}

/// Sees to all that the machine has to bring for a tool that isn't built.
async fn prepare(tool: Tool, progress: &Progress) -> Result<Built, ToolError> {
    let built = locate(tool).await?;
    if !built.folder.exists() {
        match tool.recipe() {
            // Its version is a part of where the tool lies.
            Recipe::Go(_) => (),
            Recipe::Npm(_) => npm::demand_node()?,
        }
        debian::ensure(tool.recipe().needs(), progress).await?;
    }
    Ok(built)
}

/// Where a tool is or will be, by the hash of all that goes into it.
pub async fn locate(tool: Tool) -> Result<Built, ToolError> {
    let module = workspace::tool_module(tool.name());
    let read = |name: &str| {
        let path = module.join(name);
        fs::read(&path).map_err(io_error("read", &path))
    };
    let key = match tool.recipe() {
        Recipe::Go(recipe) => recipe.key(&go_version().await?, &read("go.mod")?, &read("go.sum")?),
        Recipe::Npm(recipe) => recipe.key(&read(npm::PACKAGE)?, &read(npm::LOCK)?),
    };
    let folder = workspace::tools().join(format!("{tool}-{key}"));
    Ok(Built { tool, key, folder })
}

/// Keeps a second run from building the same tool at the same time.
fn lock(tool: Tool) -> Result<fs::File, ToolError> {
    let path = workspace::tools().join(format!("{tool}.lock"));
    crate::lock::hold(&path).map_err(io_error("lock", &path))
}

/// Makes all of a tool, and only then gives it the name that is looked for.
fn make(built: &Built, step: &mut Step) -> Result<(), ToolError> {
    let partial = workspace::tools().join(format!("{}-{}.partial", built.tool, built.key));
    let bin = partial.join("bin");
    remove(&partial)?;
    fs::create_dir_all(&bin).map_err(io_error("create", &bin))?;
    match built.tool.recipe() {
        Recipe::Go(recipe) => go::compile(built.tool, &recipe, &bin, step)?,
        Recipe::Npm(recipe) => npm::install(built.tool, &recipe, &partial)?,
    }
    fs::rename(&partial, &built.folder).map_err(io_error("rename", &partial))?;
    remove_older(built)
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
