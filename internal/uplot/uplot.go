// Package uplot embeds uPlot 1.6.32, which draws charts in a browser. LICENSE is its license.
package uplot

import _ "embed" // the files

//go:embed uPlot.iife.min.js
var script string

//go:embed uPlot.min.css
var style string

// Script returns the script, which defines uPlot.
func Script() string { return script }

// Style returns the style sheet.
func Style() string { return style }
