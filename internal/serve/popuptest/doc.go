// Package popuptest tests popups of the built program.
package popuptest
