//! Since when what is recorded is for other recipients than are asked for, to be told while no full snapshot for those
//! succeeds. Pure: it reads no keys, and seals nothing.

use jiff::Timestamp;

use crate::format::Seal;

/// How what is recorded is sealed, and since when that is not what is asked for.
#[derive(Debug, Default)]
pub(super) struct Former(Option<(Seal, Timestamp)>);

impl Former {
    /// What is recorded now is sealed like this, and something else may be asked for.
    pub fn notice(&mut self, recorded: &Seal, asked: &Seal, now: Timestamp) {
        if recorded == asked {
            self.0 = None;
        } else if self.0.as_ref().is_none_or(|(former, _)| former != recorded) {
            self.0 = Some((recorded.clone(), now));
        }
    }

    /// Why there is no full snapshot for those that are asked for. What goes on meanwhile is told first: a long message is cut.
    pub fn tell(&self, failure: &str) -> String {
        match &self.0 {
            None => failure.to_owned(),
            Some((Seal::Open, since)) => {
                format!("what is recorded has not been encrypted as it should be since {since:.0}: {failure}")
            }
            Some((Seal::Age { .. }, since)) => {
                format!(
                    "what is recorded has gone on being encrypted to the former recipients since {since:.0}: {failure}"
                )
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::tests::at;
    use crate::keys::Identities;

    fn to_somebody() -> Seal {
        Seal::Age { recipients: Identities::generate().recipients(), writer: None }
    }

    #[test]
    fn it_is_told_since_when_the_former_recipients_are_written_for() {
        let (first, second) = (to_somebody(), to_somebody());
        let mut former = Former::default();
        former.notice(&first, &first, at(10));
        assert_eq!(former.tell("why"), "why");
        for now in [20, 30] {
            former.notice(&first, &second, at(now));
            let told = former.tell("why");
            assert!(told.contains("the former recipients since 1970-01-01T00:00:20Z: why"), "{told}");
        }
        // They are asked for once more, or the full snapshot for the others is there.
        for same in [&first, &second] {
            former.notice(same, same, at(40));
            assert_eq!(former.tell("why"), "why");
            former.notice(&first, &second, at(50));
            assert!(former.tell("why").contains("00:00:50Z"));
        }
    }

    #[test]
    fn whoever_is_gone_over_to_may_be_a_former_one_by_then() {
        let (first, second, third) = (to_somebody(), to_somebody(), to_somebody());
        let mut former = Former::default();
        former.notice(&first, &second, at(20));
        former.notice(&first, &third, at(30));
        assert!(former.tell("why").contains("00:00:20Z"));
        former.notice(&second, &third, at(40));
        assert!(former.tell("why").contains("00:00:40Z"));
        former.notice(&Seal::Open, &third, at(50));
        let told = former.tell("why");
        assert!(told.contains("has not been encrypted") && told.contains("00:00:50Z"), "{told}");
    }
}
