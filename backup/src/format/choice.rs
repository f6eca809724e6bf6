//! Chooses what to restore: which generation, and up to which revision of it.

use std::cmp::Reverse;
use std::str::FromStr;

use jiff::{SignedDuration, Timestamp};

use super::chain::Chain;
use super::hash::{EventHash, Hash};
use super::names::{GenerationKey, Revision};
use super::reading::Reading;

/// How long after the end of what was recorded beside it a full snapshot may be told to have been taken, without a gap between
/// the two: etcd has begun to read before the first bytes come, which are what tells the moment. Where it is later than that,
/// the history in it may be another one, of which nobody knows when it began. Restores are asked for by the second.
const TOLD_LATE: SignedDuration = SignedDuration::from_secs(1);

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

/// How far a generation goes: what it takes to choose it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Span {
    /// Which.
    pub key: GenerationKey,
    /// When its full snapshot was taken.
    pub taken: Timestamp,
    /// The last moment for which a revision is known, in what is sound of it.
    pub last_moment: Timestamp,
    /// Up to where the history in its full snapshot was compacted: from there on it holds every revision.
    pub compacted: Revision,
    /// The revision of its full snapshot.
    pub first: Revision,
    /// The hash of that revision's events.
    pub first_events: Hash,
    /// The last revision in what is sound of it.
    pub head: Revision,
    /// The hash of that revision's events.
    pub last_events: Hash,
    /// Whether that is where it ends.
    pub end: End,
}

/// Whether it is known where a generation ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// It ends with its last revision.
    Known,
    /// It went on, and what came is damaged or missing.
    Lost {
        /// The last moment but one for which a revision is known: of the very last one more may have been told in what is lost.
        known_until: Option<Timestamp>,
    },
}

impl From<&Reading> for Span {
    fn from(reading: &Reading) -> Self {
        match reading {
            Reading::Whole(chain) => Self::from(chain),
            Reading::BrokenOff { sound, fault: _ } => Self::broken_off(sound),
        }
    }
}

impl From<&Chain> for Span {
    fn from(chain: &Chain) -> Self {
        Self {
            key: chain.key.clone(),
            taken: chain.full.taken,
            last_moment: chain.last_moment(),
            compacted: chain.full.compact_revision,
            first: chain.full.revision,
            first_events: chain.full.last_events,
            head: chain.head(),
            last_events: chain.last_events(),
            end: End::Known,
        }
    }
}

/// The generation to restore from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Chosen<'a> {
    /// It.
    pub key: &'a GenerationKey,
    /// Others that also hold the revision, of an earlier or another history: to be named to whoever restores.
    pub others: Vec<&'a GenerationKey>,
    /// When the next generation begins, if that goes on without a gap: until then its last revision is what the cluster was known
    /// to hold.
    pub still_until: Option<Timestamp>,
}

impl<'a> Chosen<'a> {
    fn alone(key: &'a GenerationKey) -> Self {
        Self { key, others: Vec::new(), still_until: None }
    }
}

/// What will be restored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Choice {
    /// The generation.
    pub chain: Chain,
    /// The last revision that is restored.
    pub revision: Revision,
    /// What the history has to show for it to be the one that was recorded, if the revision lies before the generation's full
    /// snapshot and another generation ends before it.
    pub seam: Option<Seam>,
}

/// The last that is known of what was recorded before a full snapshot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Seam {
    /// In which generation.
    pub recorded: GenerationKey,
    /// The last revision that is known of it.
    pub revision: Revision,
    /// The hash of that revision's events.
    pub events: Hash,
    /// How that was made.
    pub hash: EventHash,
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
    /// By the clock of whoever recorded, it was later then.
    #[error(
        "what the cluster held at {wanted} is not known: a clock was ahead, and all that came next is told to be of {at}; restore \
         one of the revisions {first} to {last}"
    )]
    ClockAhead {
        /// What was asked for.
        wanted: Timestamp,
        /// The moment that was told until it had come.
        at: Timestamp,
        /// The revision that was known to be reached before that.
        first: Revision,
        /// The last one that is told to be of that moment.
        last: Revision,
    },
}

/// The generation that was recorded nearest before a revision that comes out of this one's history, if its last revision is still
/// in that. One that is damaged shows what it has all the same.
pub fn recorded_before<'a>(spans: &'a [Span], of: &Span, wanted: Revision) -> Option<&'a Span> {
    let before = |span: &&Span| span.key.cluster == of.key.cluster && span.head > of.compacted && span.head <= wanted;
    spans.iter().filter(before).max_by_key(|span| (span.head, span.taken))
}

/// Chooses among the generations of one lineage.
pub fn choose(spans: &[Span], target: Target) -> Result<Chosen<'_>, ChoiceError> {
    match target {
        Target::Latest => {
            let whole = spans.iter().filter(|span| span.shows(target));
            let newest = whole.max_by_key(|span| (span.last_moment, span.head)).ok_or(ChoiceError::Nothing)?;
            Ok(Chosen::alone(&newest.key))
        }
        Target::Revision(wanted) => with_revision(spans, wanted),
        Target::Time(wanted) => with_time(spans, wanted),
    }
}

/// The damaged generations in whose lost part it may be what is wanted, and that would be chosen before this one then; the
/// newest one last.
pub fn in_doubt<'a>(spans: &'a [Span], target: Target, chosen: Option<&GenerationKey>) -> Vec<&'a Span> {
    let chosen = chosen.and_then(|key| spans.iter().find(|span| span.key == *key));
    let mut found: Vec<_> = spans.iter().filter(|span| span.may_hold(target, chosen)).collect();
    found.sort_by_key(|span| span.taken);
    found
}

impl Span {
    /// Of a generation that went on, and of which no more is sound.
    pub fn broken_off(sound: &Chain) -> Self {
        let last = sound.last_moment();
        let known_until = sound.samples().rev().map(|sample| sample.at).find(|at| *at < last);
        Self { end: End::Lost { known_until }, ..Self::from(sound) }
    }

    /// Whether what it has shows what is wanted: whether it is in it, or known not to be.
    pub fn shows(&self, target: Target) -> bool {
        match (self.end, target) {
            (End::Known, Target::Latest | Target::Revision(_) | Target::Time(_)) => true,
            (End::Lost { .. }, Target::Latest) => false,
            (End::Lost { .. }, Target::Revision(wanted)) => wanted <= self.head,
            (End::Lost { known_until }, Target::Time(wanted)) => Some(wanted) <= known_until,
        }
    }

    /// Whether what is wanted may be in what it has lost, rather than in what was chosen.
    fn may_hold(&self, target: Target, chosen: Option<&Self>) -> bool {
        if self.shows(target) {
            return false;
        }
        match (target, chosen) {
            (Target::Latest, _) | (Target::Revision(_), None) => true,
            // What recorded it comes before what has it in its history.
            (Target::Revision(wanted), Some(chosen)) => !chosen.recorded(wanted) || chosen.taken <= self.taken,
            (Target::Time(wanted), None) => self.taken <= wanted,
            (Target::Time(wanted), Some(chosen)) => {
                let goes_further = chosen.last_moment < wanted || chosen.taken <= self.taken;
                self.taken <= wanted && self.key.cluster == chosen.key.cluster && goes_further
            }
        }
    }

    fn recorded(&self, revision: Revision) -> bool {
        (self.first..=self.head).contains(&revision)
    }

    /// The first revision that can be restored: that of an empty etcd is 1.
    pub fn oldest(&self) -> Revision {
        self.compacted.max(Revision::FIRST).min(self.first)
    }
}

/// Of the generations that recorded it the newest; if none did, the first snapshot after it that still has it in its history,
/// rather of the cluster that was backed up last.
fn with_revision(spans: &[Span], wanted: Revision) -> Result<Chosen<'_>, ChoiceError> {
    let mut holding: Vec<&Span> = spans.iter().filter(|span| span.recorded(wanted)).collect();
    holding.sort_by_key(|span| span.taken);
    if holding.is_empty() {
        let newest = spans.iter().max_by_key(|span| span.taken).map(|span| &span.key.cluster);
        holding = spans.iter().filter(|span| (span.oldest()..span.first).contains(&wanted)).collect();
        holding.sort_by_key(|span| (Some(&span.key.cluster) == newest, Reverse(span.first), span.taken));
    }
    let Some(span) = holding.pop() else {
        let held: Vec<_> = spans.iter().map(|span| format!("{} to {}", span.oldest(), span.head)).collect();
        return Err(if held.is_empty() {
            ChoiceError::Nothing
        } else {
            ChoiceError::Revision { wanted, held: held.join(", ") }
        });
    };
    let others = holding.into_iter().map(|span| &span.key).collect();
    Ok(Chosen { others, ..Chosen::alone(&span.key) })
}

fn with_time(spans: &[Span], wanted: Timestamp) -> Result<Chosen<'_>, ChoiceError> {
    let oldest = spans.iter().map(|span| span.taken).min().ok_or(ChoiceError::Nothing)?;
    let begun = || spans.iter().filter(|span| span.taken <= wanted);
    let newest = begun().max_by_key(|span| span.taken).ok_or(ChoiceError::TooEarly { wanted, oldest })?;
    // Its cluster's archive may have gone on in another one, beside which somebody took this one. What comes nearest to the
    // moment tells most of it.
    let of_its_cluster = begun().filter(|span| span.key.cluster == newest.key.cluster);
    let showing = of_its_cluster.filter(|span| span.shows(Target::Time(wanted)));
    let nearest = showing.max_by_key(|span| (span.last_moment.min(wanted), span.taken));
    let span = nearest.ok_or(ChoiceError::Nothing)?;
    let next = spans.iter().filter(|next| next.key.cluster == span.key.cluster && next.taken > wanted);
    let goes_on = next.filter(|next| match span.end {
        End::Known => begins_at_the_end(next, span) || was_begun_beside(next, span),
        // Its last revision is not its end.
        End::Lost { .. } => false,
    });
    Ok(Chosen { still_until: goes_on.map(|next| next.taken).max(), ..Chosen::alone(&span.key) })
}

/// Nothing was written between the two.
fn begins_at_the_end(next: &Span, span: &Span) -> bool {
    next.first == span.head && next.first_events == span.last_events
}

/// What was written while its full snapshot was begun is in the one before as well.
fn was_begun_beside(next: &Span, span: &Span) -> bool {
    let begins_within = (span.first..span.head).contains(&next.first);
    begins_within && next.taken.duration_since(span.last_moment) <= TOLD_LATE
}

impl Choice {
    /// What is wanted, in the generation that was chosen for it. `still_until` is that of [`Chosen`].
    pub fn of(chain: Chain, target: Target, still_until: Option<Timestamp>) -> Result<Self, ChoiceError> {
        let revision = match target {
            Target::Latest => chain.head(),
            Target::Revision(wanted) => wanted,
            Target::Time(wanted) => at_time(&chain, wanted, still_until)?,
        };
        Ok(Self { chain, revision, seam: None })
    }

    /// Whether it lies before the generation's full snapshot, and comes out of the history in that.
    pub fn rewinds(&self) -> bool {
        self.revision < self.chain.full.revision
    }
}

fn at_time(chain: &Chain, wanted: Timestamp, still_until: Option<Timestamp>) -> Result<Revision, ChoiceError> {
    let reached = chain.samples().take_while(|sample| sample.at <= wanted).last();
    let revision = reached.map_or(chain.full.revision, |sample| sample.revision);
    match chain.last_moment() {
        end if end < wanted && still_until.is_none_or(|until| until < wanted) => {
            Err(ChoiceError::NotRecorded { wanted, end, revision })
        }
        // At a moment that is noted it was as it is said.
        _ if reached.is_some_and(|sample| sample.at == wanted) => Ok(revision),
        _ => match held_up(chain, wanted) {
            Some((at, last)) => Err(ChoiceError::ClockAhead { wanted, at, first: revision, last }),
            None => Ok(revision),
        },
    }
}

/// The first moment after this one, and the last revision that is told to be of it, if more than two deltas end there: moments
/// don't go back, so whoever records with a clock that was ahead tells none that is new until its time has come. Two also end at
/// one moment where somebody takes over whose clock is a little behind.
fn held_up(chain: &Chain, wanted: Timestamp) -> Option<(Timestamp, Revision)> {
    let at = chain.samples().find(|sample| sample.at > wanted)?.at;
    let mut ends = chain.links.iter().filter(|link| link.delta.samples.last().is_some_and(|last| last.at == at));
    let (_first, _second) = (ends.next()?, ends.next()?);
    Some((at, ends.next_back()?.delta.to))
}
