//! The language of cells and rules: `min(mean_ms(disk, peers, 95%)) / mean_ms(disk, headway,
//! 95%) >= 3`.
//!
//! A reference is `quantity(measure, server, point)`; its three words are names and are not parsed
//! further, so `80% of best-peer` and `apache-prefork` may stand there. `+ - * /`, parentheses,
//! `abs`, and the aggregates `min max mean median sum`, inside which a server may be a group or
//! `a|b` and a point `*` or `40%|80%`. A rule is one or more comparisons joined by `and`; `a within
//! 0.02 of b` means `abs(a - b) <= 0.02`. What a name stands for is not known here.

use super::quantity::Quantity;
use std::fmt;

/// Deeper nesting is an error, so that no text can exhaust the stack.
const DEPTH_MAX: usize = 64;

/// Why a text is no expression.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{text:?}, character {}: {why}", at + 1)]
pub struct ExpressionError {
    /// The text of the expression.
    pub text: String,
    /// Where reading stopped, in characters from 0.
    pub at: usize,
    /// The mistake at that position.
    pub why: String,
}

/// A quantity of a server at a point.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Reference {
    /// The quantity that is referred to.
    pub quantity: Quantity,
    /// The name of a measure.
    pub measure: String,
    /// The name of a server; inside an aggregate also a group, or several.
    pub server: String,
    /// A point; inside an aggregate also `*`, or several.
    pub point: String,
}

impl fmt::Display for Reference {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Reference {
            quantity,
            measure,
            server,
            point,
        } = self;
        write!(formatter, "{quantity}({measure}, {server}, {point})")
    }
}

/// What an aggregate does with its members.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Aggregate {
    /// The smallest.
    Min,
    /// The largest value.
    Max,
    /// The mean.
    Mean,
    /// The middle one.
    Median,
    /// All together.
    Sum,
}

impl Aggregate {
    fn named(name: &str) -> Option<Aggregate> {
        Some(match name {
            "min" => Aggregate::Min,
            "max" => Aggregate::Max,
            "mean" => Aggregate::Mean,
            "median" => Aggregate::Median,
            "sum" => Aggregate::Sum,
            _ => return None,
        })
    }

    /// The aggregate of at least one value.
    pub(super) fn of(self, mut values: Vec<f64>) -> f64 {
        let count = values.len().max(1);
        let sum = values.iter().sum::<f64>();
        match self {
            Aggregate::Min => values.into_iter().fold(f64::INFINITY, f64::min),
            Aggregate::Max => values.into_iter().fold(f64::NEG_INFINITY, f64::max),
            Aggregate::Mean => sum / count as f64,
            Aggregate::Sum => sum,
            Aggregate::Median => {
                values.sort_by(f64::total_cmp);
                let upper = values.get(count / 2).copied().unwrap_or(f64::NAN);
                match count % 2 {
                    0 => f64::midpoint(values[count / 2 - 1], upper),
                    _ => upper,
                }
            }
        }
    }
}

/// `+ - * /`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arithmetic {
    /// Sum: `+`.
    Add,
    /// Difference: `-`.
    Subtract,
    /// Product: `*`.
    Multiply,
    /// Quotient: `/`.
    Divide,
}

/// An expression over references.
#[derive(Clone, Debug, PartialEq)]
pub enum Expression {
    /// A number as written.
    Number(f64),
    /// A quantity.
    Reference(Reference),
    /// Absolute value: `abs(…)`.
    Absolute(Box<Expression>),
    /// Negation: `-…`.
    Negative(Box<Expression>),
    /// Two sides.
    Binary(Arithmetic, Box<Expression>, Box<Expression>),
    /// `min(…, …)` and the like.
    Aggregate(Aggregate, Vec<Expression>),
}

/// `< <= > >=`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// Less than: `<`.
    Less,
    /// At most: `<=`.
    AtMost,
    /// Greater than: `>`.
    Greater,
    /// At least: `>=`.
    AtLeast,
}

impl Order {
    /// The sign as a rule writes it.
    pub fn sign(self) -> &'static str {
        match self {
            Order::Less => "<",
            Order::AtMost => "<=",
            Order::Greater => ">",
            Order::AtLeast => ">=",
        }
    }

    /// Whether the comparison is true; never for values that are not numbers.
    pub fn is_true(self, left: f64, right: f64) -> bool {
        match self {
            Order::Less => left < right,
            Order::AtMost => left <= right,
            Order::Greater => left > right,
            Order::AtLeast => left >= right,
        }
    }
}

/// One comparison of a rule.
#[derive(Clone, Debug, PartialEq)]
pub struct Compared {
    /// The comparison as the rule writes it.
    pub text: String,
    /// The left side.
    pub left: Expression,
    /// How the two sides compare.
    pub order: Order,
    /// The right side.
    pub right: Expression,
}

impl Expression {
    /// Reads an expression.
    ///
    /// # Errors
    /// See [`ExpressionError`].
    pub fn parse(text: &str) -> Result<Expression, ExpressionError> {
        let mut parser = Parser::new(text);
        let expression = parser.sum()?;
        parser.end()?;
        Ok(expression)
    }

    /// Whether a number stands in it.
    pub fn has_number(&self) -> bool {
        match self {
            Expression::Number(_) => true,
            Expression::Reference(_) => false,
            Expression::Absolute(inner) | Expression::Negative(inner) => inner.has_number(),
            Expression::Binary(_, left, right) => left.has_number() || right.has_number(),
            Expression::Aggregate(_, members) => members.iter().any(Expression::has_number),
        }
    }

    /// Every reference in it.
    pub fn references(&self) -> Vec<&Reference> {
        match self {
            Expression::Number(_) => Vec::new(),
            Expression::Reference(reference) => vec![reference],
            Expression::Absolute(inner) | Expression::Negative(inner) => inner.references(),
            Expression::Binary(_, left, right) => [left.references(), right.references()].concat(),
            Expression::Aggregate(_, members) => {
                members.iter().flat_map(Expression::references).collect()
            }
        }
    }
}

/// Reads a rule: comparisons joined by `and`.
///
/// ```
/// use headway_latency::study::expression::parse_rule;
///
/// let rule = parse_rule("p99_ms(stalled, headway, 30%) <= 2 * p99_ms(calm, headway, 30%)")?;
/// assert_eq!(rule.len(), 1);
/// # Ok::<(), headway_latency::study::expression::ExpressionError>(())
/// ```
///
/// # Errors
/// See [`ExpressionError`].
pub fn parse_rule(text: &str) -> Result<Vec<Compared>, ExpressionError> {
    let mut parser = Parser::new(text);
    let mut comparisons = vec![parser.comparison()?];
    while parser.word("and") {
        comparisons.push(parser.comparison()?);
    }
    parser.end()?;
    Ok(comparisons)
}

struct Parser<'a> {
    text: &'a str,
    at: usize,
    depth: usize,
}

impl<'a> Parser<'a> {
    fn new(text: &'a str) -> Parser<'a> {
        Parser {
            text,
            at: 0,
            depth: 0,
        }
    }

    fn rest(&self) -> &'a str {
        &self.text[self.at..]
    }

    fn error<T>(&self, why: impl Into<String>) -> Result<T, ExpressionError> {
        Err(ExpressionError {
            text: self.text.to_owned(),
            at: self.text[..self.at].chars().count(),
            why: why.into(),
        })
    }

    fn space(&mut self) {
        self.at += self.rest().len() - self.rest().trim_start().len();
    }

    fn sign(&mut self, sign: &str) -> bool {
        self.space();
        let found = self.rest().starts_with(sign);
        self.at += if found { sign.len() } else { 0 };
        found
    }

    /// A whole word, not the beginning of a longer one.
    fn word(&mut self, word: &str) -> bool {
        self.space();
        let rest = self.rest().strip_prefix(word);
        let found = rest.is_some_and(|rest| {
            !rest.starts_with(|next: char| next.is_alphanumeric() || next == '_')
        });
        self.at += if found { word.len() } else { 0 };
        found
    }

    fn expect(&mut self, sign: &str) -> Result<(), ExpressionError> {
        match self.sign(sign) {
            true => Ok(()),
            false => self.error(format!("{sign:?} is missing here")),
        }
    }

    fn end(&mut self) -> Result<(), ExpressionError> {
        self.space();
        match self.rest().is_empty() {
            true => Ok(()),
            false => self.error("this does not belong to the expression"),
        }
    }

    fn comparison(&mut self) -> Result<Compared, ExpressionError> {
        self.space();
        let start = self.at;
        let left = self.sum()?;
        let (left, order, right) = match self.word("within") {
            true => {
                let bound = self.sum()?;
                if !self.word("of") {
                    return self.error("write `a within 0.02 of b`");
                }
                let other = self.sum()?;
                let apart =
                    Expression::Binary(Arithmetic::Subtract, Box::new(left), Box::new(other));
                (Expression::Absolute(Box::new(apart)), Order::AtMost, bound)
            }
            false => {
                let order = self.order()?;
                (left, order, self.sum()?)
            }
        };
        Ok(Compared {
            text: self.text[start..self.at].trim_end().to_owned(),
            left,
            order,
            right,
        })
    }

    fn order(&mut self) -> Result<Order, ExpressionError> {
        // The longer signs first, since the shorter ones begin them.
        for order in [Order::AtMost, Order::AtLeast, Order::Less, Order::Greater] {
            if self.sign(order.sign()) {
                return Ok(order);
            }
        }
        self.error("a comparison is missing here: <, <=, >, >= or within")
    }

    fn sum(&mut self) -> Result<Expression, ExpressionError> {
        self.depth += 1;
        if self.depth > DEPTH_MAX {
            return self.error("this is nested too deeply");
        }
        let mut left = self.product()?;
        loop {
            let operator = match (self.sign("+"), self.at) {
                (true, _) => Arithmetic::Add,
                (false, _) if self.sign("-") => Arithmetic::Subtract,
                _ => break,
            };
            left = Expression::Binary(operator, Box::new(left), Box::new(self.product()?));
        }
        self.depth -= 1;
        Ok(left)
    }

    fn product(&mut self) -> Result<Expression, ExpressionError> {
        let mut left = self.factor()?;
        loop {
            let operator = match (self.sign("*"), self.at) {
                (true, _) => Arithmetic::Multiply,
                (false, _) if self.sign("/") => Arithmetic::Divide,
                _ => return Ok(left),
            };
            left = Expression::Binary(operator, Box::new(left), Box::new(self.factor()?));
        }
    }

    fn factor(&mut self) -> Result<Expression, ExpressionError> {
        if self.sign("-") {
            return Ok(Expression::Negative(Box::new(self.factor_within()?)));
        }
        if self.sign("(") {
            let inner = self.sum()?;
            self.expect(")")?;
            return Ok(inner);
        }
        self.space();
        match self.rest().chars().next() {
            Some(first) if first.is_ascii_digit() || first == '.' => self.number(),
            Some(first) if first.is_ascii_alphabetic() => self.call(),
            Some(_) => self.error("neither a number nor quantity(measure, server, point)"),
            None => self.error("something is missing at the end"),
        }
    }

    /// A factor behind a sign, which may nest.
    fn factor_within(&mut self) -> Result<Expression, ExpressionError> {
        self.depth += 1;
        if self.depth > DEPTH_MAX {
            return self.error("this is nested too deeply");
        }
        let inner = self.factor()?;
        self.depth -= 1;
        Ok(inner)
    }

    fn number(&mut self) -> Result<Expression, ExpressionError> {
        let rest = self.rest();
        let end = rest.find(|next: char| !(next.is_ascii_digit() || next == '.'));
        let digits = &rest[..end.unwrap_or(rest.len())];
        match digits.parse() {
            Ok(number) => {
                self.at += digits.len();
                Ok(Expression::Number(number))
            }
            Err(_) => self.error(format!("{digits:?} is not a number")),
        }
    }

    /// `abs(…)`, an aggregate, or a reference.
    fn call(&mut self) -> Result<Expression, ExpressionError> {
        let rest = self.rest();
        let Some(open) = rest.find('(') else {
            return self.error("a name is followed by (measure, server, point)");
        };
        let name = rest[..open].trim_end();
        if name == "abs" {
            self.at += open + 1;
            let inner = self.sum()?;
            self.expect(")")?;
            return Ok(Expression::Absolute(Box::new(inner)));
        }
        if let Some(aggregate) = Aggregate::named(name) {
            self.at += open + 1;
            let mut members = vec![self.sum()?];
            while self.sign(",") {
                members.push(self.sum()?);
            }
            self.expect(")")?;
            return Ok(Expression::Aggregate(aggregate, members));
        }
        let quantity = match Quantity::parse(name) {
            Ok(quantity) => quantity,
            Err(why) => return self.error(why),
        };
        self.at += open + 1;
        self.reference(quantity).map(Expression::Reference)
    }

    fn reference(&mut self, quantity: Quantity) -> Result<Reference, ExpressionError> {
        let rest = self.rest();
        let Some(close) = rest.find(')') else {
            return self.error("\")\" is missing here");
        };
        let names: Vec<&str> = rest[..close].split(',').map(str::trim).collect();
        let [measure, server, point] = names[..] else {
            return self.error(format!("{quantity} wants (measure, server, point)"));
        };
        if [measure, server, point].contains(&"") {
            return self.error("a name is empty");
        }
        self.at += close + 1;
        Ok(Reference {
            quantity,
            measure: measure.to_owned(),
            server: server.to_owned(),
            point: point.to_owned(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn number(text: &str) -> f64 {
        fn value(of: &Expression) -> f64 {
            match of {
                Expression::Number(number) => *number,
                Expression::Reference(_) => f64::NAN,
                Expression::Absolute(inner) => value(inner).abs(),
                Expression::Negative(inner) => -value(inner),
                Expression::Aggregate(kind, members) => {
                    kind.of(members.iter().map(value).collect())
                }
                Expression::Binary(operator, left, right) => {
                    let (left, right) = (value(left), value(right));
                    match operator {
                        Arithmetic::Add => left + right,
                        Arithmetic::Subtract => left - right,
                        Arithmetic::Multiply => left * right,
                        Arithmetic::Divide => left / right,
                    }
                }
            }
        }
        value(&Expression::parse(text).expect("an expression"))
    }

    #[test]
    fn arithmetic_has_the_usual_precedence() {
        assert_eq!(number("1 + 2 * 3 - 4 / 2"), 5.0);
        assert_eq!(number("(1 + 2) * -3"), -9.0);
        assert_eq!(number("10 - 3 - 2"), 5.0);
        assert_eq!(number("abs(1.5 - 3)"), 1.5);
        assert_eq!(number("max(1, min(5, 7), 2) + sum(1, 2)"), 8.0);
        assert_eq!(number("median(9, 1, 2) + median(1, 3) + mean(2, 4)"), 7.0);
    }

    #[test]
    fn names_keep_their_hyphens_and_percents_when_they_are_referred_to() {
        let text =
            "mean_ms(disk, new-flash, 80% of best-peer) - sleeps:page-io:openat(t, nginx|h2o, *)";
        let expression = Expression::parse(text).expect("an expression");
        let references: Vec<String> = expression
            .references()
            .iter()
            .map(ToString::to_string)
            .collect();
        assert_eq!(
            references,
            [
                "mean_ms(disk, new-flash, 80% of best-peer)",
                "sleeps:page-io:openat(t, nginx|h2o, *)"
            ]
        );
    }

    #[test]
    fn rule_is_comparisons_when_they_are_joined() {
        let rule = parse_rule("p95_ms(d, a, 1/s) >= 10 and 3 within 0.02 of p95_ms(d, b, 1/s)");
        let rule = rule.expect("a rule");
        assert_eq!(rule.len(), 2);
        assert_eq!(rule[0].text, "p95_ms(d, a, 1/s) >= 10");
        assert_eq!(
            (rule[1].order, &rule[1].right),
            (Order::AtMost, &Expression::Number(0.02))
        );
        assert_eq!(rule[1].text, "3 within 0.02 of p95_ms(d, b, 1/s)");
    }

    #[test]
    fn error_has_its_position_when_a_rule_is_wrong() {
        let deep = "(".repeat(100) + "1";
        let cases = [
            ("1 +", "character 4", "missing at the end"),
            (
                "mean_ms(disk, a) > 1",
                "character 9",
                "(measure, server, point)",
            ),
            (
                "speed(disk, a, 1%) > 1",
                "character 1",
                "no quantity \"speed\"",
            ),
            ("1 = 2", "character 3", "comparison is missing"),
            ("1 > 2 or 3 > 4", "character 7", "does not belong"),
            ("decile:1(d, a, b) > 0", "character 1", "takes 2 arguments"),
            ("1 within 2", "character 11", "within 0.02 of b"),
            ("mean_ms(disk, , 1%) > 1", "character 9", "empty"),
            (deep.as_str(), "character", "too deeply"),
        ];
        for (text, position, why) in cases {
            let error = parse_rule(text).unwrap_err().to_string();
            assert!(error.contains(position) && error.contains(why), "{error}");
        }
    }
}
