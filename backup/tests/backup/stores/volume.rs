//! A store on a folder. Whoever may reach it may do everything, so nothing is wrong with how it is reached.

use std::fs;
use std::path::Path;

use quorate_backup::store::Provider;
use tempfile::TempDir;

use super::place::Place;
use super::{Flaw, Server};

pub struct Volume(TempDir);

impl Volume {
    pub fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }
}

impl Server for Volume {
    fn place(&self, prefix: &str) -> Place {
        let place = Place::at(format!("file://{}/{prefix}", self.0.path().display()));
        // A folder that is missing would be taken for a volume that is not mounted.
        if let Provider::Volume { folder } = place.address().provider {
            fs::create_dir_all(folder).unwrap();
        }
        place
    }

    fn flawed(&self, _: &str, _: Flaw) -> Option<Place> {
        None
    }

    fn parts_left(&self) -> Option<usize> {
        Some(files(self.0.path(), "#"))
    }
}

/// How many files below a folder have this in their paths.
pub fn files(folder: &Path, part: &str) -> usize {
    let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    entries
        .map(|path| if path.is_dir() { files(&path, part) } else { usize::from(path.to_string_lossy().contains(part)) })
        .sum()
}
