//! A pair of keys as a user has it: a file of age-keygen's, and one with the public key.

use std::fs;
use std::path::Path;
use std::process::Command;

use age::secrecy::ExposeSecret;
use age::x25519::Identity;
use quorate_backup::keys::{Fingerprint, KeyFiles};
use tempfile::TempDir;

use crate::real::by_hand;

/// The files, and what they say.
pub struct Pair {
    folder: TempDir,
    recipients: String,
    identity: String,
    key: Identity,
}

impl Pair {
    pub fn new() -> Self {
        let (folder, key) = (tempfile::tempdir().unwrap(), Identity::generate());
        let path = |name| folder.path().join(name).to_str().unwrap().to_owned();
        let (recipients, identity) = (path("recipients"), path("identity"));
        let (public, private) = (key.to_public(), key.to_string());
        fs::write(&recipients, format!("{public}\n")).unwrap();
        fs::write(&identity, format!("# public key: {public}\n{}\n", private.expose_secret())).unwrap();
        Self { folder, recipients, identity, key }
    }

    /// One that age's own program has made.
    pub fn of_keygen() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let path = |name| folder.path().join(name).to_str().unwrap().to_owned();
        let (recipients, identity) = (path("recipients"), path("identity"));
        let keygen = by_hand("age", "QUORATE_AGE").with_file_name("age-keygen");
        ended_well(Command::new(&keygen).args(["-o", &identity]));
        fs::write(&recipients, ended_well(Command::new(&keygen).args(["-y", &identity]))).unwrap();
        let text = fs::read_to_string(&identity).unwrap();
        let key = text.lines().find(|line| !line.starts_with('#')).unwrap().parse().unwrap();
        Self { folder, recipients, identity, key }
    }

    /// What age's own program makes of a file.
    pub fn decrypt_by_hand(&self, file: &Path) -> Vec<u8> {
        let age = by_hand("age", "QUORATE_AGE");
        ended_well(Command::new(age).args(["--decrypt", "--identity", &self.identity]).arg(file))
    }

    /// The file with the public key.
    pub fn recipients(&self) -> &str {
        &self.recipients
    }

    /// The file with the private key.
    pub fn identity(&self) -> &str {
        &self.identity
    }

    pub fn files(&self) -> KeyFiles {
        let path = |name| Some(self.folder.path().join(name));
        KeyFiles { recipients: path("recipients"), identity: path("identity") }
    }

    /// What manifests call it.
    pub fn fingerprint(&self) -> Fingerprint {
        self.files().recipients().unwrap().unwrap().fingerprints().remove(0)
    }

    /// As `age -d -i`.
    pub fn decrypt(&self, file: &[u8]) -> Vec<u8> {
        age::decrypt(&self.key, file).unwrap()
    }

    /// Whether a text gives the private key away.
    pub fn is_told_by(&self, text: &str) -> bool {
        let private = self.key.to_string();
        text.contains(private.expose_secret())
    }
}

/// What it printed.
fn ended_well(command: &mut Command) -> Vec<u8> {
    let output = command.output().unwrap();
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    output.stdout
}
