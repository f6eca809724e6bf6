//! Chooses what to restore: which generation, and up to which revision of it.

use std::str::FromStr;

use jiff::Timestamp;

use super::chain::Chain;
use super::names::{GenerationKey, Revision};

/// What is wanted back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Target {
    /// The newest there is.
    Latest,
    /// The state after this revision.
    Revision(Revision),
    /// The state at this moment: everything that was known to be written by then.
    Time(Timestamp),
}

impl FromStr for Target {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "latest" => Ok(Self::Latest),
            _ => match (text.parse(), text.parse()) {
                (Ok(revision), _) => Ok(Self::Revision(revision)),
                (_, Ok(time)) => Ok(Self::Time(time)),
                _ => Err(format!("{text:?} is none of: latest, a revision, a time such as 2026-11-21T14:25:36Z")),
            },
        }
    }
}

/// What will be restored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Choice<'a> {
    /// The generation.
    pub chain: &'a Chain,
    /// The last revision that is restored.
    pub revision: Revision,
    /// Others that also hold this revision, of an earlier or another history: to be named to whoever restores.
    pub others: Vec<GenerationKey>,
}

/// Why nothing fits.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum ChoiceError {
    /// There is no backup at all.
    #[error("there is no complete backup")]
    Nothing,
    /// No generation holds the revision.
    #[error("no backup holds revision {wanted}; there are: {held}")]
    Revision {
        /// What was asked for.
        wanted: Revision,
        /// From where to where the generations go.
        held: String,
    },
    /// All backups are later.
    #[error("no backup is as old as {wanted}; the oldest is of {oldest}")]
    TooEarly {
        /// What was asked for.
        wanted: Timestamp,
        /// The oldest moment that can be restored.
        oldest: Timestamp,
    },
    /// Nobody recorded what happened then.
    #[error(
        "what the cluster held at {wanted} was not recorded: the record ends at {end}, revision {revision}; restore that time, or the revision"
    )]
    NotRecorded {
        /// What was asked for.
        wanted: Timestamp,
        /// The last moment before it for which a revision is known.
        end: Timestamp,
        /// That revision.
        revision: Revision,
    },
}

/// Chooses among the generations of one lineage.
pub fn choose(chains: &[Chain], target: Target) -> Result<Choice<'_>, ChoiceError> {
    match target {
        Target::Latest => {
            let chain =
                chains.iter().max_by_key(|chain| (chain.last_moment(), chain.head())).ok_or(ChoiceError::Nothing)?;
            Ok(Choice { chain, revision: chain.head(), others: Vec::new() })
        }
        Target::Revision(wanted) => at_revision(chains, wanted),
        Target::Time(wanted) => at_time(chains, wanted),
    }
}

fn at_revision(chains: &[Chain], wanted: Revision) -> Result<Choice<'_>, ChoiceError> {
    let mut holding: Vec<&Chain> =
        chains.iter().filter(|chain| (chain.full.revision..=chain.head()).contains(&wanted)).collect();
    holding.sort_by_key(|chain| chain.full.taken);
    let Some(chain) = holding.pop() else {
        let spans: Vec<_> = chains.iter().map(|chain| format!("{} to {}", chain.full.revision, chain.head())).collect();
        return Err(if spans.is_empty() {
            ChoiceError::Nothing
        } else {
            ChoiceError::Revision { wanted, held: spans.join(", ") }
        });
    };
    Ok(Choice { chain, revision: wanted, others: holding.into_iter().map(|chain| chain.key.clone()).collect() })
}

fn at_time(chains: &[Chain], wanted: Timestamp) -> Result<Choice<'_>, ChoiceError> {
    let oldest = chains.iter().map(|chain| chain.full.taken).min().ok_or(ChoiceError::Nothing)?;
    let begun = || chains.iter().filter(|chain| chain.full.taken <= wanted);
    let newest = begun().max_by_key(|chain| chain.full.taken).ok_or(ChoiceError::TooEarly { wanted, oldest })?;
    // Its cluster's archive may have gone on in another one, beside which somebody took this one.
    let of_its_cluster = begun().filter(|chain| chain.key.cluster == newest.key.cluster);
    let chain = of_its_cluster.max_by_key(|chain| (chain.last_moment() >= wanted, chain.full.taken)).unwrap_or(newest);
    let reached = chain.samples().take_while(|sample| sample.at <= wanted).last();
    let revision = reached.map_or(chain.full.revision, |sample| sample.revision);
    if chain.last_moment() < wanted {
        return Err(ChoiceError::NotRecorded { wanted, end: chain.last_moment(), revision });
    }
    Ok(Choice { chain, revision, others: Vec::new() })
}
