// Package plans reads SQL and the plans that databases make for it. It is
// shared by the startup check of feeds and by the analysis of one statement.
//
// It has one lexer (Lex), which knows how PostgreSQL, MySQL, MariaDB and SQLite
// write strings, names and comments; one reader of EXPLAIN output (Plan); and
// one adviser, which names the missing index (Check for a feed, Select.Advise
// for a statement).
//
// The package opens no connection and imports no driver. Callers run the
// statements and pass the text of their results. Catalog writes the statements
// that describe a table and runs them through a function of the caller.
package plans
