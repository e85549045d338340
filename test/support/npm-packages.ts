import { execFileSync } from 'node:child_process'
import { existsSync, mkdirSync, renameSync, rmSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { packageRoot } from '../../core/system/package-info.ts'
import { RELEASED_BEFORE } from '../agents/packages.ts'

/**
 * Installs packages with exact versions into a folder of `.cache`, unless they are there, and returns the path of their
 * `node_modules`. A new version needs a new folder.
 */
export function installPackages(folder: string, packages: readonly string[]): string {
  const place = join(packageRoot, '.cache', folder)
  const modules = join(place, 'node_modules')
  if (existsSync(modules)) return modules
  const part = `${place}.part`
  rmSync(part, { recursive: true, force: true })
  mkdirSync(part, { recursive: true })
  writeFileSync(join(part, 'package.json'), '{ "private": true }\n')
  const quiet = ['--ignore-scripts', '--no-audit', '--no-fund', '--loglevel=error', `--before=${RELEASED_BEFORE}`]
  execFileSync('npm', ['install', ...quiet, ...packages], { cwd: part, stdio: 'pipe' })
  renameSync(part, place)
  return modules
}

/** The conformance tests of the Model Context Protocol, and the Node.js 22 that they need (Linux). */
export function conformanceProgram() {
  const modules = installPackages('mcp-conformance-0.1.16', [
    '@modelcontextprotocol/conformance@0.1.16',
    `node-linux-${process.arch}@22.23.3`
  ])
  const program = join(modules, '@modelcontextprotocol/conformance/dist/index.js')
  return { program, node: join(modules, `node-linux-${process.arch}/bin/node`) }
}
