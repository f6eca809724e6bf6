//! A generation as far as it is sound. What comes before the first manifest that is damaged or missing can still be restored;
//! where the generation ended is not known then, and nobody may take what is left for all of it.

use std::fmt;

use super::chain::{Chain, ChainError};
use super::choice::{End, Span, Target};
use super::names::GenerationKey;
use crate::store::{Store, StoreError};

/// What reading a generation comes to.
#[derive(Debug)]
pub enum Reading {
    /// All of its manifests are sound.
    Whole(Chain),
    /// From some delta on they are not.
    BrokenOff {
        /// The manifests before that.
        sound: Chain,
        /// What is wrong with the first that is not.
        fault: ChainError,
    },
}

impl Reading {
    /// Reads a generation as far as it is sound. Without a sound full snapshot there is nothing of it.
    pub async fn of(store: &Store, key: &GenerationKey) -> Result<Self, ChainError> {
        Self::and_report(store, key, &|_, _| {}).await
    }

    /// The same. `report` is told how many manifests have been read, of all that a listing shows.
    pub async fn and_report(
        store: &Store,
        key: &GenerationKey,
        report: &(dyn Fn(u64, u64) + Sync),
    ) -> Result<Self, ChainError> {
        let (mut sound, ended) = Chain::read_as_far(store, key, report).await?;
        match ended {
            Ok(()) => Ok(Self::Whole(sound)),
            // Another time it may be read.
            Err(ChainError::Store(error)) if !matches!(error, StoreError::Refused { .. }) => Err(error.into()),
            Err(fault) => {
                // The one before it may be the one that was exchanged or damaged. A full snapshot is proved by its own data.
                if matches!(fault, ChainError::Broken(_)) {
                    sound.links.pop();
                }
                Ok(Self::BrokenOff { sound, fault })
            }
        }
    }

    /// What is sound of it, which need not be all.
    pub fn sound(&self) -> &Chain {
        match self {
            Self::Whole(chain) | Self::BrokenOff { sound: chain, fault: _ } => chain,
        }
    }

    /// What is sound, if that shows what is wanted. One that is whole shows everything: of what comes after its end it is known
    /// that it is not in it.
    pub fn showing(self, target: Target) -> Result<Chain, Box<Damage>> {
        let span = Span::from(&self);
        match self {
            Self::Whole(chain) => Ok(chain),
            Self::BrokenOff { sound, fault: _ } if span.shows(target) => Ok(sound),
            Self::BrokenOff { sound: _, fault } => Err(Box::new(Damage { span, fault })),
        }
    }
}

/// What is wrong with a generation that breaks off, and what can be restored of it.
#[derive(Debug, thiserror::Error)]
#[error("{fault}; {}", Restorable(span))]
pub struct Damage {
    /// How far what is sound of it goes.
    pub span: Span,
    /// What is wrong with the first manifest after that.
    pub fault: ChainError,
}

/// Says up to where it can be restored.
struct Restorable<'a>(&'a Span);

impl fmt::Display for Restorable<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Span { key, head, end, .. } = self.0;
        write!(f, "revisions {} to {head} of {key} can be restored", self.0.oldest())?;
        match end {
            End::Lost { known_until: Some(until) } => write!(f, ", and times up to {until}"),
            End::Lost { known_until: None } | End::Known => Ok(()),
        }
    }
}
