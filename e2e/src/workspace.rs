//! Where things lie: the repository's root and the one ignored folder that holds all that is built or run. Reads and
//! writes nothing.

use std::path::{Path, PathBuf};

/// The repository's root folder.
pub fn root() -> PathBuf {
    let crate_folder = Path::new(env!("CARGO_MANIFEST_DIR"));
    crate_folder.parent().unwrap_or(crate_folder).to_path_buf()
}

/// The ignored folder for everything that is built from pinned sources or belongs to a running lab.
pub fn cache() -> PathBuf {
    root().join(".cache")
}

/// The pinned Go module of a tool.
pub fn tool_module(tool: &str) -> PathBuf {
    root().join("e2e/tools").join(tool)
}

/// Built tools, one folder each, named by the tool and the hash of all that goes into it.
pub fn tools() -> PathBuf {
    cache().join("tools")
}

/// Image archives, one file each, named by the image and the hash of its content.
pub fn images() -> PathBuf {
    cache().join("images")
}

/// The run folder of a lab.
pub fn run(lab: &str) -> PathBuf {
    cache().join("run").join(lab)
}
