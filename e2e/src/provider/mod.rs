//! What brings up a cluster: our own from sources, kind, or none because the user has one. Chooses the best that works
//! here and says what the others lack.

mod current;
mod kind;

use std::fmt;
use std::path::PathBuf;

use clap::ValueEnum;

use crate::command::{Command, CommandError};
use crate::debian::find_program;
use crate::images::{self, Archive, ImageError};
use crate::lab::{Lab, LabError, LabName};
use crate::progress::Progress;
use crate::scene::LAB_VARIABLE;
use crate::tools;
pub use current::Current;
pub use kind::Kind;

/// The providers, the best first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum ProviderKind {
    /// A Kubernetes built from pinned sources, in network namespaces of this machine. Needs Linux, root and Go.
    Local,
    /// A cluster made by kind in Docker or podman.
    Kind,
    /// The cluster of the current kubeconfig.
    Current,
}

impl ProviderKind {
    const ALL: [Self; 3] = [Self::Local, Self::Kind, Self::Current];

    /// What is missing for it here, if anything.
    async fn missing(self) -> Option<String> {
        match self {
            Self::Local if std::env::consts::OS != "linux" => Some("it needs Linux".into()),
            Self::Local if !rustix::process::geteuid().is_root() => Some("it needs root (try sudo)".into()),
            Self::Local => tools::go_version().await.err().map(|error| error.to_string()),
            Self::Kind => kind::missing().await,
            Self::Current => current::missing().await,
        }
    }
}

impl fmt::Display for ProviderKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Local => "local",
            Self::Kind => "kind",
            Self::Current => "current",
        })
    }
}

/// Why there is no cluster.
#[derive(Debug, thiserror::Error)]
pub enum ProviderError {
    /// The provider that was asked for can't work here.
    #[error("provider `{provider}` can't be used here: {missing}")]
    Unusable {
        /// Which.
        provider: ProviderKind,
        /// What it lacks.
        missing: String,
    },
    /// None can work here.
    #[error("no provider can be used here:\n{0}")]
    None(String),
    /// The local lab failed.
    #[error(transparent)]
    Lab(#[from] LabError),
    /// A program that we call failed.
    #[error(transparent)]
    Command(#[from] CommandError),
    /// An image can't be made.
    #[error(transparent)]
    Image(#[from] ImageError),
    /// A file can't be read or written.
    #[error("failed to write {}", .0.display())]
    File(PathBuf, #[source] std::io::Error),
    /// It takes no images from us.
    #[error("{0}")]
    NoLoading(String),
}

/// A cluster to work with.
#[derive(Debug, Clone)]
pub enum Provider {
    /// Our own.
    Local(LabName),
    /// One of kind's.
    Kind(Kind),
    /// The user's.
    Current(Current),
}

impl Provider {
    /// The one that was asked for, else the best that works here.
    pub async fn choose(wanted: Option<ProviderKind>, lab: &LabName) -> Result<Self, ProviderError> {
        first_that_works(wanted, ProviderKind::missing).await.map(|provider| Self::of(provider, lab))
    }

    fn of(provider: ProviderKind, lab: &LabName) -> Self {
        match provider {
            ProviderKind::Local => Self::Local(lab.clone()),
            ProviderKind::Kind => Self::Kind(Kind::new(lab)),
            ProviderKind::Current => Self::Current(Current),
        }
    }

    /// Which it is.
    pub const fn kind(&self) -> ProviderKind {
        match self {
            Self::Local(_) => ProviderKind::Local,
            Self::Kind(_) => ProviderKind::Kind,
            Self::Current(_) => ProviderKind::Current,
        }
    }

    /// The images that it takes from us: all that tests need; of the user's own cluster only those that nobody else has.
    pub async fn images(&self, progress: &Progress) -> Result<Vec<Archive>, ProviderError> {
        match self {
            Self::Local(_) | Self::Kind(_) => all_images(progress).await,
            Self::Current(_) => Ok(images::own(progress).await?),
        }
    }

    /// Brings it up, or what is missing of it.
    pub async fn up(&self, nodes: u8, progress: &Progress) -> Result<(), ProviderError> {
        match self {
            Self::Local(name) => Lab::up(name.clone(), nodes, progress).await.map(drop).map_err(Into::into),
            Self::Kind(kind) => kind.up(nodes, progress).await,
            Self::Current(current) => current.check().await,
        }
    }

    /// Takes it down. The user's own cluster is left alone.
    pub async fn down(&self) -> Result<(), ProviderError> {
        match self {
            Self::Local(name) => Lab::down(name).await.map_err(Into::into),
            Self::Kind(kind) => kind.down().await,
            Self::Current(_) => Ok(()),
        }
    }

    /// Its kubeconfig; the client's own choice for the user's cluster.
    pub fn kubeconfig(&self) -> Result<Option<PathBuf>, ProviderError> {
        match self {
            Self::Local(name) => Ok(Some(Lab::open(name.clone())?.kubeconfig())),
            Self::Kind(kind) => Ok(Some(kind.kubeconfig())),
            Self::Current(_) => Ok(None),
        }
    }

    /// Loads images into it. Returns the names of those that it didn't have.
    pub async fn load(&self, archives: &[Archive]) -> Result<Vec<String>, ProviderError> {
        match self {
            Self::Local(name) => Ok(Lab::open(name.clone())?.import(archives).await?),
            Self::Kind(kind) => kind.load(archives).await,
            Self::Current(current) => current.load(archives),
        }
    }

    /// A call of kubectl against it.
    pub fn kubectl(&self) -> Result<Command, ProviderError> {
        match self {
            Self::Local(name) => Ok(Lab::open(name.clone())?.kubectl()),
            Self::Kind(_) | Self::Current(_) => self.exec("kubectl"),
        }
    }

    /// A call of a program where the cluster can be reached.
    pub fn exec(&self, program: &str) -> Result<Command, ProviderError> {
        let command = match self {
            // Who is started so asks this lab for its addresses and its kubectl; elsewhere KUBECONFIG says all.
            Self::Local(name) => {
                Command::in_namespace(&name.control_plane().path(), program).env(LAB_VARIABLE, name.as_str())
            }
            Self::Kind(_) | Self::Current(_) => Command::new(program),
        };
        let kubeconfig = self.kubeconfig()?;
        Ok(kubeconfig.iter().fold(command, |command, path| command.env("KUBECONFIG", path)))
    }
}

/// The one that was asked for, else the best, given what each of them lacks. Who is not asked for is not looked at.
async fn first_that_works(
    wanted: Option<ProviderKind>,
    lacks: impl AsyncFn(ProviderKind) -> Option<String>,
) -> Result<ProviderKind, ProviderError> {
    let candidates = wanted.map_or_else(|| ProviderKind::ALL.to_vec(), |kind| vec![kind]);
    let mut lacking = vec![];
    for provider in candidates {
        match lacks(provider).await {
            None => return Ok(provider),
            Some(missing) => lacking.push((provider, missing)),
        }
    }
    Err(refusal(wanted, lacking))
}

fn refusal(wanted: Option<ProviderKind>, lacking: Vec<(ProviderKind, String)>) -> ProviderError {
    match (wanted, lacking.into_iter()) {
        (Some(provider), mut lacking) => {
            let missing = lacking.next().map(|(_, missing)| missing).unwrap_or_default();
            ProviderError::Unusable { provider, missing }
        }
        (None, lacking) => {
            let lines: Vec<String> = lacking.map(|(provider, missing)| format!("  {provider}: {missing}")).collect();
            ProviderError::None(lines.join("\n"))
        }
    }
}

/// What to say when a program is missing.
fn program_missing(name: &str) -> Option<String> {
    find_program(name).is_none().then(|| format!("there is no `{name}` on the search path"))
}

/// All images that tests need: ours and the others'.
pub async fn all_images(progress: &Progress) -> Result<Vec<Archive>, ProviderError> {
    let mut archives = images::own(progress).await?;
    archives.extend(images::foreign(progress).await?);
    Ok(archives)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_best_that_works_is_chosen_and_one_that_is_asked_for_or_none() {
        use ProviderKind::{Current, Kind, Local};
        for (wanted, work, chosen, looked_at) in [
            (None, vec![Local, Kind, Current], Some(Local), vec![Local]),
            (None, vec![Kind, Current], Some(Kind), vec![Local, Kind]),
            (None, vec![Current], Some(Current), vec![Local, Kind, Current]),
            (None, vec![], None, vec![Local, Kind, Current]),
            (Some(Kind), vec![Local, Kind, Current], Some(Kind), vec![Kind]),
            (Some(Current), vec![Local, Kind], None, vec![Current]),
        ] {
            let looks = std::cell::RefCell::new(vec![]);
            let choice = first_that_works(wanted, async |provider| {
                looks.borrow_mut().push(provider);
                (!work.contains(&provider)).then(|| "it lacks something".to_owned())
            });
            assert_eq!(choice.await.ok(), chosen, "{wanted:?} of {work:?}");
            assert_eq!(looks.into_inner(), looked_at, "{wanted:?} of {work:?}");
        }
    }

    #[test]
    fn each_refusal_says_what_is_missing() {
        let lacking = vec![(ProviderKind::Local, "it needs root".to_owned()), (ProviderKind::Kind, "no kind".into())];
        let text = refusal(None, lacking.clone()).to_string();
        assert_eq!(text, "no provider can be used here:\n  local: it needs root\n  kind: no kind");
        let text = refusal(Some(ProviderKind::Local), lacking).to_string();
        assert_eq!(text, "provider `local` can't be used here: it needs root");
    }
}
