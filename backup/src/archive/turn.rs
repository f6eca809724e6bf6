//! Whether to go over to a generation that somebody else has begun. Only decides, by what is known of both.

use super::session::MOST_BEHIND;
use crate::format::Revision;

/// A generation that ends so many revisions before what has come is not gone over to. Some more could be followed: but the member
/// has more than has come, and yet more when the next watch is opened.
const FAR: u64 = MOST_BEHIND / 2;

/// What this archive is to the others.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Post {
    /// It follows.
    Standby,
    /// Its member leads now: it finds out what others have stored until then.
    TakingOver,
    /// It stores.
    Committer,
}

/// What is known of the own generation, and of a newer one.
#[derive(Debug, Clone, Copy)]
pub(super) struct Prospect {
    pub post: Post,
    /// The last revision that came.
    pub heard: u64,
    /// The last one that is stored in the own generation.
    pub stored: Revision,
    /// Something has come that is not stored.
    pub holds: bool,
    /// The own generation was added to so recently that it may be added to again.
    pub may_go_on: bool,
    /// The last revision of the newer one's full snapshot.
    pub full: Revision,
    /// The last revision of the newer one.
    pub newest: Revision,
    /// The newer one's data is sealed as is asked for now.
    pub fits: bool,
}

/// What to do about a newer generation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Turn {
    /// Go over to it.
    Over,
    /// Store what is held in the own one first: the next look finds the newer one again.
    AfterStoring,
    /// Stay, and pass it over from now on.
    PassOver,
    /// Stay for now.
    Stay,
}

/// Who records goes over only if it need not begin another generation for it. Whoever holds what is not in the older one and
/// came before the full snapshot stores it there first, also if it stands by: no revision between the two is left out, even
/// where the one that began the newer one had been away. Else who stands by does as the one that records.
pub(super) fn turn(prospect: Prospect) -> Turn {
    let Prospect { post, heard, stored, holds, may_go_on, full, newest, fits } = prospect;
    // Its end could not be followed from here: whoever went over would hold nothing, and begin another one.
    let is_out_of_reach = !fits || newest.get() + FAR <= heard;
    match post {
        Post::Committer | Post::TakingOver if is_out_of_reach => Turn::PassOver,
        Post::Standby if newest == full && may_go_on => Turn::Stay,
        Post::Committer | Post::TakingOver | Post::Standby if stored < full && holds => Turn::AfterStoring,
        // Nobody records into it, and where it can't be followed nobody will.
        Post::Standby if newest == full && is_out_of_reach => Turn::Stay,
        // What came before the full snapshot is on its way to here, as it is to the others that stand by; and whoever records
        // into the newer one comes nearer.
        Post::Standby if (stored < full || is_out_of_reach) && may_go_on => Turn::Stay,
        Post::Committer | Post::TakingOver | Post::Standby => Turn::Over,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn revision(number: u64) -> Revision {
        Revision::new(number).unwrap()
    }

    /// A committer that has stored up to 100 and heard up to 150, and a full snapshot of revision 140.
    fn prospect() -> Prospect {
        Prospect {
            post: Post::Committer,
            heard: 150,
            stored: revision(100),
            holds: true,
            may_go_on: true,
            full: revision(140),
            newest: revision(140),
            fits: true,
        }
    }

    #[test]
    fn who_records_leaves_no_revision_out() {
        assert_eq!(turn(prospect()), Turn::AfterStoring);
        assert_eq!(turn(Prospect { stored: revision(150), holds: false, ..prospect() }), Turn::Over);
        assert_eq!(turn(Prospect { stored: revision(140), ..prospect() }), Turn::Over, "the rest is in the newer one");
        assert_eq!(turn(Prospect { holds: false, ..prospect() }), Turn::Over, "there is nothing to store");
    }

    #[test]
    fn who_records_passes_over_what_can_not_be_followed() {
        for post in [Post::Committer, Post::TakingOver] {
            let far = |heard| turn(Prospect { post, heard, stored: revision(heard), holds: false, ..prospect() });
            assert_eq!(far(140 + MOST_BEHIND / 2), Turn::PassOver, "more has been written than has come");
            assert_eq!(far(139 + MOST_BEHIND / 2), Turn::Over);
            assert_eq!(turn(Prospect { post, fits: false, ..prospect() }), Turn::PassOver);
        }
    }

    #[test]
    fn who_stands_by_stores_what_the_one_that_was_away_has_missed() {
        let standby = Prospect { post: Post::Standby, newest: revision(141), ..prospect() };
        for post in [Post::Standby, Post::TakingOver] {
            assert_eq!(turn(Prospect { post, ..standby }), Turn::AfterStoring);
            assert_eq!(turn(Prospect { post, stored: revision(140), ..standby }), Turn::Over, "it is stored");
        }
        let waiting = Prospect { holds: false, ..standby };
        assert_eq!(turn(waiting), Turn::Stay, "it comes, or another one stores it");
        assert_eq!(turn(Prospect { may_go_on: false, ..waiting }), Turn::Over, "it does not");
    }

    #[test]
    fn who_stands_by_follows_the_one_that_goes_on() {
        let standby = Prospect { post: Post::Standby, holds: false, ..prospect() };
        assert_eq!(turn(standby), Turn::Stay, "nobody has recorded into the newer one yet");
        let stored = revision(140);
        assert_eq!(turn(Prospect { newest: revision(141), stored, ..standby }), Turn::Over);
        assert_eq!(turn(Prospect { may_go_on: false, ..standby }), Turn::Over);
        let far = Prospect { heard: 141 + MOST_BEHIND, newest: revision(141), stored, ..standby };
        assert_eq!(turn(far), Turn::Stay, "it could not follow");
        let sealed = Prospect { newest: revision(141), stored, fits: false, ..standby };
        assert_eq!(turn(sealed), Turn::Stay, "it could not go on with it");
        let beside = Prospect { fits: false, may_go_on: false, ..standby };
        assert_eq!(turn(beside), Turn::Stay, "nor could those that record");
        assert_eq!(turn(Prospect { may_go_on: false, ..far }), Turn::Over);
        assert_eq!(turn(Prospect { post: Post::TakingOver, ..standby }), Turn::Over);
    }
}
