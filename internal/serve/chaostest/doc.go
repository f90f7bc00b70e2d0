// Package chaostest checks that every acknowledged record of a stream is accounted for while an
// operator alters tables, changes the configuration, restores databases from copies, and kills and
// restarts the built program and its database.
package chaostest
