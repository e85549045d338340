#!/usr/bin/env node
// The command `corral`. It is a file of its own, so that npm can link it before a checkout has been compiled.
import { existsSync } from 'node:fs'

process.setSourceMapsEnabled(true)
const main = new URL('../dist/command-line/main.js', import.meta.url)
if (!existsSync(main)) (await import('./compile.mjs')).compile()
await import(main.href)
