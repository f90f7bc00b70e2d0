// Package browser tries the demo's page and the console in a headless Chromium: `make browser`.
package browser
