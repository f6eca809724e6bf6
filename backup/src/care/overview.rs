//! What is in a store: every generation, whole or not.

use crate::format::{Chain, ChainError, Damage, GenerationKey, Lineage, Reading, Span, generations};
use crate::store::{Store, StoreError};

/// A generation, as far as it can be read.
#[derive(Debug)]
pub struct Overview {
    /// Which.
    pub key: GenerationKey,
    /// What it is worth.
    pub state: State,
}

/// What a generation is worth.
#[derive(Debug)]
pub enum State {
    /// Its manifests are all there.
    Whole(Box<Chain>),
    /// Its full snapshot is being taken, or never was.
    WithoutFull,
    /// It can't be restored beyond some point.
    BrokenOff {
        /// What comes before that. It went on, so nothing may be told of it by where this ends.
        sound: Box<Chain>,
        /// What is wrong, and up to where it can be restored.
        damage: String,
    },
    /// It can't be restored at all.
    Damaged(String),
}

/// All generations of a lineage, or of all lineages, in the order of their names.
pub async fn keys(store: &Store, lineage: Option<&Lineage>) -> Result<Vec<GenerationKey>, StoreError> {
    let lineages = match lineage {
        Some(lineage) => vec![lineage.clone()],
        None => store.folders(None).await?.iter().filter_map(|name| name.parse().ok()).collect(),
    };
    let mut found = Vec::new();
    for lineage in lineages {
        found.extend(generations(store, &lineage).await?);
    }
    Ok(found)
}

impl Overview {
    /// Reads one. A day of flushes takes some megabytes of memory: whoever looks at many holds one at a time. `report` is told
    /// how many of its manifests have been read, of all.
    pub async fn read(
        store: &Store,
        key: GenerationKey,
        report: &(dyn Fn(u64, u64) + Sync),
    ) -> Result<Self, StoreError> {
        let state = match Reading::and_report(store, &key, report).await {
            Ok(Reading::Whole(chain)) => State::Whole(Box::new(chain)),
            Ok(Reading::BrokenOff { sound, fault }) => {
                let damage = Damage { span: Span::broken_off(&sound), fault }.to_string();
                State::BrokenOff { sound: Box::new(sound), damage }
            }
            Err(ChainError::NoFull(_)) => State::WithoutFull,
            Err(ChainError::Store(error)) if !matches!(error, StoreError::Refused { .. }) => return Err(error),
            // That one object alone is refused must not keep the others from being looked at.
            Err(
                error @ (ChainError::Store(_)
                | ChainError::Manifest { .. }
                | ChainError::Broken(_)
                | ChainError::Gap { .. }),
            ) => State::Damaged(error.to_string()),
        };
        Ok(Self { key, state })
    }
}
