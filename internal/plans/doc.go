// Package plans reads SQL and the plans that databases make for it. It is
// shared by the startup check of feeds and by the analysis of one statement.
//
// It has one lexer (Lex), which knows how PostgreSQL, MySQL, MariaDB and SQLite
// write strings, names and comments; a reader of conditions (Reader); one of
// EXPLAIN output (Plan); and Check, which names the index that a feed lacks.
//
// The package opens no connection and imports no driver. Callers run the
// statements and pass the text of their results. Catalog writes the statements
// that describe a table and runs them through a function of the caller.
package plans
