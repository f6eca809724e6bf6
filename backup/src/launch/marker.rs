//! What lies on a member's volume beside etcd's data: the marker, by which the volume says whose it is and whether a backup
//! was restored onto it. It reads, writes and clears away; what a volume may be used for is decided elsewhere.

use std::fs::{self, DirBuilder, File};
use std::io::{self, Write};
use std::os::unix::fs::DirBuilderExt;
use std::path::Path;

use serde::{Deserialize, Serialize};

use super::Identity;
use crate::ticket::{DATA_FOLDER, EtcdVersion, MemberName, VolumeMark, VolumeUid};

/// The file by which a volume says whose it is.
pub(super) const FILE: &str = "quorate.json";
/// The marker while it is written.
pub(super) const UNFINISHED: &str = "quorate.json.new";
/// The data directory while it is deleted: a crash in the middle must not leave a half of it under its name.
const DATA_DISCARDED: &str = "data.discarded";
/// What a fresh ext4 file system holds.
const LOST_AND_FOUND: &str = "lost+found";
/// The marker's form, to be raised when an older launcher must not read a newer marker. What else is new in one, an older
/// launcher leaves unread: after an operator was taken back to an earlier release, its members have to come up.
const FORMAT: u32 = 1;
/// No marker is longer; a larger file is not read.
const MAX_BYTES: u64 = 4096;
/// As etcd creates it.
const DATA_MODE: u32 = 0o700;

/// What the marker says.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Marker {
    format: u32,
    /// Whose the volume is.
    pub member: MemberName,
    /// Which volume it was when it was marked.
    pub volume: VolumeUid,
    /// By which it is told from the same volume once it was emptied. Nothing, if a restore began on it, or no launcher waited
    /// for its ticket before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mark: Option<VolumeMark>,
    /// How far the restore of a backup onto it has come. Nothing, if none was asked for, and from the first start of etcd
    /// on: what is restored later than that would be an older state under the same identity.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub restore: Option<Restore>,
}

/// How far a restore has come.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Restore {
    /// Whatever is there may be half of it.
    Begun,
    /// All of it is there, for etcd of this version.
    Done(EtcdVersion),
}

/// A marker that can't be understood.
#[derive(Debug, thiserror::Error)]
#[error("the marker {path}: {problem}")]
pub struct MarkerError {
    path: String,
    problem: String,
}

impl Marker {
    /// The marker of a member that starts with nothing, or goes on with what it has.
    pub fn of(Identity { member, volume }: &Identity) -> Self {
        Self { format: FORMAT, member: member.clone(), volume: volume.clone(), mark: None, restore: None }
    }

    /// The same, with a mark.
    pub fn with_mark(self, mark: VolumeMark) -> Self {
        Self { mark: Some(mark), ..self }
    }

    /// The same, with how far a restore has come.
    pub fn restoring(self, restore: Restore) -> Self {
        Self { restore: Some(restore), ..self }
    }

    /// Whether it is this member's on this volume.
    pub fn is_of(&self, own: &Identity) -> bool {
        self.member == own.member && self.volume == own.volume
    }

    /// Whether it says no more than that a launcher of this member waited there, in a pod that may have been made for another
    /// claim of the same name: nothing was ever started there.
    pub fn is_of_a_wait(&self, root: &Path, own: &Identity) -> io::Result<bool> {
        let Self { format: _, member, volume: _, mark, restore } = self;
        Ok(*member == own.member && mark.is_some() && restore.is_none() && has_no_data(root)?)
    }

    /// The marker of the volume that is mounted there; nothing if there is none.
    pub fn read(root: &Path) -> Result<Option<Self>, MarkerError> {
        let path = root.join(FILE);
        let odd = |problem: &dyn std::fmt::Display| MarkerError {
            path: path.display().to_string(),
            problem: problem.to_string(),
        };
        match fs::metadata(&path) {
            Err(fault) if fault.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(fault) => return Err(odd(&fault)),
            Ok(metadata) if !metadata.is_file() || metadata.len() > MAX_BYTES => return Err(odd(&"not a marker")),
            Ok(_) => (),
        }
        let bytes = fs::read(&path).map_err(|fault| odd(&fault))?;
        let marker: Self = serde_json::from_slice(&bytes).map_err(|fault| odd(&fault))?;
        if marker.format != FORMAT {
            return Err(odd(&format!("of format {}, this launcher reads {FORMAT}", marker.format)));
        }
        Ok(Some(marker))
    }

    /// Writes it whole or not at all, and lasting.
    pub fn write(&self, root: &Path) -> io::Result<()> {
        let unfinished = root.join(UNFINISHED);
        let mut file = File::create(&unfinished)?;
        file.write_all(&serde_json::to_vec(self)?)?;
        file.sync_all()?;
        fs::rename(&unfinished, root.join(FILE))?;
        File::open(root)?.sync_all()
    }
}

/// The name of the first thing on a volume without a marker that is data. An empty data directory is none.
pub fn first_data(root: &Path) -> io::Result<Option<String>> {
    for entry in fs::read_dir(root)? {
        let name = entry?.file_name();
        let empty_data = name == DATA_FOLDER && is_empty_folder(&root.join(DATA_FOLDER))?;
        if name != LOST_AND_FOUND && name != UNFINISHED && !empty_data {
            return Ok(Some(name.to_string_lossy().into_owned()));
        }
    }
    Ok(None)
}

/// Whether the data directory is empty, or not there, and no other is being deleted.
fn has_no_data(root: &Path) -> io::Result<bool> {
    let is_none = |name: &str| match is_empty_folder(&root.join(name)) {
        Err(fault) if fault.kind() == io::ErrorKind::NotFound => Ok(true),
        other => other,
    };
    Ok(is_none(DATA_FOLDER)? && !root.join(DATA_DISCARDED).exists())
}

/// Deletes the data directory, whole or not at all under its name, and makes an empty one. One that is empty stays, so that
/// nothing is written on the way of a first start; then it says false.
pub fn discard(root: &Path) -> io::Result<bool> {
    let discarded = root.join(DATA_DISCARDED);
    if root.join(DATA_FOLDER).is_dir() && has_no_data(root)? {
        return Ok(false);
    }
    absent_is_fine(fs::remove_dir_all(&discarded))?;
    absent_is_fine(fs::rename(root.join(DATA_FOLDER), &discarded))?;
    absent_is_fine(fs::remove_dir_all(&discarded))?;
    make_data_dir(root)?;
    Ok(true)
}

/// Makes the data directory, so that one sync of the root covers marker and directory: etcd would not sync it.
pub fn make_data_dir(root: &Path) -> io::Result<()> {
    match DirBuilder::new().mode(DATA_MODE).create(root.join(DATA_FOLDER)) {
        Err(fault) if fault.kind() != io::ErrorKind::AlreadyExists => return Err(fault),
        Ok(()) | Err(_) => (),
    }
    File::open(root)?.sync_all()
}

fn is_empty_folder(path: &Path) -> io::Result<bool> {
    Ok(fs::symlink_metadata(path)?.is_dir() && fs::read_dir(path)?.next().is_none())
}

fn absent_is_fine(result: io::Result<()>) -> io::Result<()> {
    match result {
        Err(fault) if fault.kind() == io::ErrorKind::NotFound => Ok(()),
        other => other,
    }
}
