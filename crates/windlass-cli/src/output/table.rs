//! Tables without lines: as wide as the terminal on one, as wide as they are in a pipe.

use std::io::IsTerminal as _;

use comfy_table::{Cell, ContentArrangement, presets};

use super::Out;
use crate::exit::Failure;

/// A table in the making. Columns in which every cell is empty are left out.
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
        // A row is a line: what has several is told in full by other commands.
        let one_line = |cell: String| cell.trim_end().replace(['\n', '\t'], " ");
        let mut cells: Vec<String> = cells.into_iter().map(one_line).collect();
        cells.resize(self.columns.len(), String::new());
        self.rows.push(cells);
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    pub(crate) fn print(self) -> Result<(), Failure> {
        let used = |column: &usize| self.rows.iter().any(|row| !row[*column].is_empty());
        let shown: Vec<usize> = (0..self.columns.len()).filter(used).collect();
        let mut table = comfy_table::Table::new();
        table.load_style(presets::NOTHING);
        if std::io::stdout().is_terminal() {
            table.set_content_arrangement(ContentArrangement::Dynamic);
        } else {
            table.set_content_arrangement(ContentArrangement::Disabled);
        }
        table.set_header(shown.iter().map(|at| Cell::new(self.out.dim(self.columns[*at]))));
        for row in &self.rows {
            table.add_row(shown.iter().map(|at| Cell::new(&row[*at])));
        }
        for column in table.column_iter_mut() {
            column.set_padding((0, 2));
        }
        for line in table.lines() {
            self.out.line(line.trim_end())?;
        }
        Ok(())
    }
}
