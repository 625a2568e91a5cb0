//! Tables without borders: fitted to the width of a terminal, unlimited in a pipe.

use std::io::IsTerminal as _;

use console::{Term, measure_text_width, pad_str, truncate_str};

use super::Out;
use crate::exit::Failure;

/// Spaces between two columns.
const GAP: usize = 2;
/// Columns that a narrow terminal omits, in this order.
const OMITTED: [&str; 2] = ["UPDATED", "CREATED"];
/// Columns that are never truncated: users copy their values into other commands.
const NEVER_TRUNCATED: [&str; 2] = ["RUN", "STATUS"];
/// The minimum width of a truncated cell.
const TRUNCATED_WIDTH_MIN: usize = 8;

/// A table builder. Columns with only empty cells are omitted.
pub(crate) struct Table {
    columns: Vec<&'static str>,
    rows: Vec<Vec<String>>,
    out: Out,
}

impl Table {
    pub(crate) fn new(columns: &[&'static str], out: Out) -> Self {
        Self { columns: columns.to_vec(), rows: Vec::new(), out }
    }

    pub(crate) fn row(&mut self, cells: impl IntoIterator<Item = String>) {
        // One row is one line; other commands show the full text.
        let one_line = |cell: String| cell.trim_end().replace(['\n', '\t'], " ");
        let mut cells: Vec<String> = cells.into_iter().map(one_line).collect();
        cells.resize(self.columns.len(), String::new());
        self.rows.push(cells);
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    pub(crate) fn print(self) -> Result<(), Failure> {
        let width = match std::io::stdout().is_terminal() {
            true => usize::from(Term::stdout().size().1),
            false => usize::MAX,
        };
        self.lines(width).iter().try_for_each(|line| self.out.line(line))
    }

    fn lines(&self, width_max: usize) -> Vec<String> {
        let used = |column: &usize| self.rows.iter().any(|row| !row[*column].is_empty());
        let all = (0..self.columns.len()).filter(used);
        let mut shown: Vec<(usize, usize)> = all.map(|at| (at, self.width_of(at))).collect();
        for name in OMITTED {
            if total(&shown) > width_max {
                shown.retain(|(at, _)| self.columns[*at] != name);
            }
        }
        while total(&shown) > width_max {
            let can_shrink = |(at, width): &&mut (usize, usize)| {
                *width > TRUNCATED_WIDTH_MIN && !NEVER_TRUNCATED.contains(&self.columns[*at])
            };
            // Shrinks the widest column first. If no column can shrink, the terminal wraps the
            // lines.
            let widest = shown.iter_mut().filter(can_shrink).max_by_key(|(_, width)| *width);
            match widest {
                Some((_, width)) => *width -= 1,
                None => break,
            }
        }
        let line = |cell: &dyn Fn(usize) -> String| {
            let padded = shown.iter().map(|(at, width)| {
                let cut = truncate_str(&cell(*at), *width, "…").into_owned();
                pad_str(&cut, *width, console::Alignment::Left, None).into_owned()
            });
            padded.collect::<Vec<_>>().join(&" ".repeat(GAP)).trim_end().to_owned()
        };
        let head = line(&|at| self.out.dim(self.columns[at]));
        let rows = self.rows.iter().map(|row| line(&|at| row[at].clone()));
        std::iter::once(head).chain(rows).collect()
    }

    fn width_of(&self, column: usize) -> usize {
        let cells = self.rows.iter().map(|row| measure_text_width(&row[column]));
        cells.chain([self.columns[column].len()]).max().unwrap_or(0)
    }
}

fn total(shown: &[(usize, usize)]) -> usize {
    let widths: usize = shown.iter().map(|(_, width)| width).sum();
    widths + GAP * shown.len().saturating_sub(1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::Format;

    #[test]
    fn narrow_tables_omit_or_truncate_columns() {
        let mut table = Table::new(
            &["RUN", "STATUS", "CREATED", "UPDATED", "LABELS", "ERROR"],
            Out::new(Format::Text),
        );
        let cells =
            ["order/order-1", "errored", "3 h ago", "2 h ago", "", "Error: 漢字 did not fit"];
        table.row(cells.map(str::to_owned));
        for (width, expect) in [
            (usize::MAX, "order/order-1  errored  3 h ago  2 h ago  Error: 漢字 did not fit"),
            (60, "order/order-1  errored  3 h ago  Error: 漢字 did not fit"),
            (50, "order/order-1  errored  Error: 漢字 did not fit"),
            (40, "order/order-1  errored  Error: 漢字 did…"),
            (10, "order/order-1  errored  Error: …"),
        ] {
            assert_eq!(table.lines(width)[1], expect, "{width}");
        }
    }
}
