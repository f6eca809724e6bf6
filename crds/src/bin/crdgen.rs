//! Writes the definitions into `deploy/` and the API reference into `docs/`. A test checks that both are up to date.

use std::path::Path;
use std::process::ExitCode;

use quorate_crds::{manifest, reference};

fn main() -> ExitCode {
    match write_all() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

fn write_all() -> Result<(), Box<dyn std::error::Error>> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    for (file, text) in [
        (manifest::CLUSTER_CRD_FILE, manifest::to_yaml(&manifest::cluster())?),
        (manifest::BACKUP_CRD_FILE, manifest::to_yaml(&manifest::backup())?),
        (reference::FILE, reference::markdown(&manifest::cluster(), &manifest::backup())?),
    ] {
        let path = root.join(file);
        if let Some(folder) = path.parent() {
            std::fs::create_dir_all(folder)?;
        }
        std::fs::write(&path, text)?;
        println!("{file}");
    }
    Ok(())
}
