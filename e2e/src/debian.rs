//! Sees to the programs of the operating system that the lab needs: installs their Debian packages as root, else says
//! exactly what to install. Must not touch anything that is there already.

use std::path::{Path, PathBuf};

use crate::command::{Command, CommandError};
use crate::progress::Progress;

/// Something of the operating system that we need, and the Debian package that brings it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Need {
    /// A program on the search path.
    Program(&'static str, &'static str),
    /// A file at a fixed place.
    File(&'static str, &'static str),
    /// A C library that pkg-config knows.
    Library(&'static str, &'static str),
}

/// What running a local cluster needs.
pub const LAB: &[Need] = &[
    Need::Program("ip", "iproute2"),
    Need::Program("nft", "nftables"),
    Need::Program("nsenter", "util-linux"),
    Need::Program("mount", "mount"),
    Need::File("/usr/lib/cni/bridge", "containernetworking-plugins"),
    Need::File("/bin/busybox", "busybox-static"),
];

/// Why something of the operating system is missing.
#[derive(Debug, thiserror::Error)]
pub enum DebianError {
    /// We may not install it.
    #[error("{} missing; install with: apt-get install -y --no-install-recommends {}", .0.join(", "), .0.join(" "))]
    Missing(Vec<&'static str>),
    /// apt-get failed.
    #[error("failed to install {}", .0.join(", "))]
    Install(Vec<&'static str>, #[source] CommandError),
}

impl Need {
    async fn is_met(self) -> bool {
        match self {
            Self::Program(name, _) => find_program(name).is_some(),
            Self::File(path, _) => Path::new(path).exists(),
            Self::Library(name, _) => Command::new("pkg-config").args(["--exists", name]).succeeds().await,
        }
    }

    const fn package(self) -> &'static str {
        match self {
            Self::Program(_, package) | Self::File(_, package) | Self::Library(_, package) => package,
        }
    }
}

/// Where a program lies on the search path. The folders for root's programs are looked at too, since a plain user's
/// search path lacks them.
pub fn find_program(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders = std::env::split_paths(&path).chain(["/usr/sbin".into(), "/sbin".into()]);
    folders.map(|folder| folder.join(name)).find(|file| file.is_file())
}

/// Makes sure that all `needs` are met.
pub async fn ensure(needs: &[Need], progress: &Progress) -> Result<(), DebianError> {
    let packages = missing(needs).await;
    if packages.is_empty() {
        return Ok(());
    }
    if !rustix::process::geteuid().is_root() || find_program("apt-get").is_none() {
        return Err(DebianError::Missing(packages));
    }
    let step = progress.step(format_args!("Debian packages {}", packages.join(", ")));
    let apt = |args: &[&str]| Command::new("apt-get").env("DEBIAN_FRONTEND", "noninteractive").args(args);
    let install = apt(&["install", "-y", "--no-install-recommends"]).args(&packages);
    let installed = match install.run().await {
        Ok(_) => Ok(()),
        // A fresh machine has no package lists yet.
        Err(_) => match apt(&["update"]).run().await {
            Ok(_) => install.run().await.map(drop),
            Err(error) => Err(error),
        },
    };
    installed.map_err(|error| DebianError::Install(packages, error))?;
    step.done("installed");
    Ok(())
}

async fn missing(needs: &[Need]) -> Vec<&'static str> {
    let mut packages = vec![];
    for need in needs {
        if !need.is_met().await && !packages.contains(&need.package()) {
            packages.push(need.package());
        }
    }
    packages
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn what_is_missing_is_named_once() {
        let needs = [
            Need::Program("sh", "dash"),
            Need::Program("no-such-a", "nowhere"),
            Need::File("/no/such/file", "nowhere"),
            Need::Library("no-such-library", "liba-dev"),
        ];
        assert_eq!(missing(&needs).await, ["nowhere", "liba-dev"]);
    }

    #[test]
    fn the_error_is_a_command_to_copy() {
        let text = DebianError::Missing(vec!["nftables", "iproute2"]).to_string();
        assert!(text.ends_with("apt-get install -y --no-install-recommends nftables iproute2"), "{text}");
    }
}
