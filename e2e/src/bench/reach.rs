//! What rows are to reach, and whether they do. Only comparisons: nothing is measured here, and nothing fails by it.

use std::fmt;

use super::report::Spread;

/// One of the figures that a row's samples come to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Figure {
    /// The median.
    Median,
    /// The most.
    Max,
}

/// What a row is to reach. Ratios are those of the medians.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Reach {
    /// This ratio to the floor or less.
    RatioAtMost(f64),
    /// Less than this ratio to the floor.
    RatioBelow(f64),
    /// This value or less.
    ValueAtMost(Figure, f64),
    /// This value or more.
    ValueAtLeast(Figure, f64),
}

/// Whether a row is within its reach.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It is.
    Met,
    /// It is not.
    Missed,
}

impl Figure {
    fn of(self, spread: Spread) -> f64 {
        match self {
            Self::Median => spread.median,
            Self::Max => spread.max,
        }
    }
}

/// Whether what a row came to is within this reach. What was not measured is not.
pub fn verdict(reach: Reach, ratio: Option<f64>, value: Option<Spread>) -> Verdict {
    let met = match reach {
        Reach::RatioAtMost(most) => ratio.is_some_and(|ratio| ratio <= most),
        Reach::RatioBelow(limit) => ratio.is_some_and(|ratio| ratio < limit),
        Reach::ValueAtMost(figure, most) => value.is_some_and(|value| figure.of(value) <= most),
        Reach::ValueAtLeast(figure, least) => value.is_some_and(|value| figure.of(value) >= least),
    };
    if met { Verdict::Met } else { Verdict::Missed }
}

impl fmt::Display for Figure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Median => "median",
            Self::Max => "max",
        })
    }
}

impl fmt::Display for Reach {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::RatioAtMost(most) => write!(f, "<= {most} x"),
            Self::RatioBelow(limit) => write!(f, "< {limit} x"),
            Self::ValueAtMost(figure, most) => write!(f, "{figure} <= {most}"),
            Self::ValueAtLeast(figure, least) => write!(f, "{figure} >= {least}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const VALUE: Spread = Spread { min: 1.0, median: 3.0, max: 4.0 };

    /// Of a row whose ratio is 1.5.
    fn judged(reach: Reach) -> Verdict {
        verdict(reach, Some(1.5), Some(VALUE))
    }

    #[test]
    fn a_ratio_may_come_up_to_what_it_is_at_most() {
        assert_eq!(judged(Reach::RatioAtMost(1.5)), Verdict::Met);
        assert_eq!(judged(Reach::RatioAtMost(1.499)), Verdict::Missed);
    }

    #[test]
    fn a_ratio_has_to_stay_below_its_limit() {
        assert_eq!(judged(Reach::RatioBelow(1.501)), Verdict::Met);
        assert_eq!(judged(Reach::RatioBelow(1.5)), Verdict::Missed);
    }

    #[test]
    fn a_value_is_judged_by_the_figure_that_is_named() {
        assert_eq!(judged(Reach::ValueAtMost(Figure::Median, 3.0)), Verdict::Met);
        assert_eq!(judged(Reach::ValueAtMost(Figure::Median, 2.9)), Verdict::Missed);
        assert_eq!(judged(Reach::ValueAtMost(Figure::Max, 4.0)), Verdict::Met);
        assert_eq!(judged(Reach::ValueAtMost(Figure::Max, 3.0)), Verdict::Missed);
    }

    #[test]
    fn a_value_may_come_down_to_what_it_is_at_least() {
        assert_eq!(judged(Reach::ValueAtLeast(Figure::Median, 3.0)), Verdict::Met);
        assert_eq!(judged(Reach::ValueAtLeast(Figure::Median, 3.1)), Verdict::Missed);
    }

    #[test]
    fn what_was_not_measured_is_not_within_reach() {
        assert_eq!(verdict(Reach::RatioAtMost(2.0), None, Some(VALUE)), Verdict::Missed);
        assert_eq!(verdict(Reach::RatioBelow(2.0), Some(f64::NAN), Some(VALUE)), Verdict::Missed);
        assert_eq!(verdict(Reach::ValueAtMost(Figure::Max, 9.0), Some(1.5), None), Verdict::Missed);
        assert_eq!(verdict(Reach::ValueAtLeast(Figure::Median, 0.0), Some(1.5), None), Verdict::Missed);
    }

    #[test]
    fn it_is_told_in_a_few_characters() {
        assert_eq!(Reach::RatioAtMost(1.05).to_string(), "<= 1.05 x");
        assert_eq!(Reach::RatioBelow(1.0).to_string(), "< 1 x");
        assert_eq!(Reach::ValueAtMost(Figure::Max, 0.0).to_string(), "max <= 0");
        assert_eq!(Reach::ValueAtLeast(Figure::Median, 600_000.0).to_string(), "median >= 600000");
    }
}
