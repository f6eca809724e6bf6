//! The etcd programs on which the calls are tried: those in the folders that `QUORATE_ETCD_BIN` names, separated by `:`. With
//! `QUORATE_REAL_ETCD=required` it is a failure if there are none. Runs nothing.

use std::path::PathBuf;

/// The programs.
pub fn all() -> Vec<PathBuf> {
    let Some(folders) = std::env::var_os("QUORATE_ETCD_BIN") else {
        without("QUORATE_ETCD_BIN is not set");
        return Vec::new();
    };
    let programs: Vec<_> = std::env::split_paths(&folders).map(|folder| folder.join("etcd")).collect();
    for program in &programs {
        assert!(program.is_file(), "QUORATE_ETCD_BIN: there is no {}", program.display());
    }
    programs
}

/// Says that something can't be tried, which is a failure where it has to be.
pub fn without(why: &str) {
    assert!(std::env::var_os("QUORATE_REAL_ETCD").is_none_or(|demand| demand != "required"), "{why}");
    eprintln!("{why}: nothing was tried");
}
