import { existsSync, readFileSync } from 'node:fs'
import { join } from 'node:path'
import { packageRoot } from '../../core/system/package-info.ts'

export interface AgentPackage {
  registry: 'npm' | 'PyPI'
  name: string
  version: string
  /** The command, and its file in the folder of the installation. */
  command: string
  file: string
  /** Which tests run it. The setup installs the packages of long tests on request only. */
  tests: 'thorough' | 'long'
  /** Minor version of the oldest Python 3 that it runs on. */
  python?: number
}

/** Only packages from before this day, so that every installation has the same dependencies. */
export const RELEASED_BEFORE = '2026-11-26'
export const AGENTS_FOLDER = join(packageRoot, '.cache', 'agents')
const platform = `${process.platform}-${process.arch}`

export const AGENTS = {
  'claude-code': {
    registry: 'npm',
    name: '@anthropic-ai/claude-code',
    version: '2.1.332',
    command: 'claude',
    file: `node_modules/@anthropic-ai/claude-code-${platform}/claude`,
    tests: 'thorough'
  },
  codex: {
    registry: 'npm',
    name: '@openai/codex',
    version: '0.169.0',
    command: 'codex',
    file: 'node_modules/.bin/codex',
    tests: 'thorough'
  },
  opencode: {
    registry: 'npm',
    name: 'opencode-ai',
    version: '1.18.33',
    command: 'opencode',
    file: `node_modules/opencode-${platform}/bin/opencode`,
    tests: 'thorough'
  },
  qwen: {
    registry: 'npm',
    name: '@qwen-code/qwen-code',
    version: '0.24.4',
    command: 'qwen',
    file: 'node_modules/.bin/qwen',
    tests: 'thorough'
  },
  pi: {
    registry: 'npm',
    name: '@mariozechner/pi-coding-agent',
    version: '0.73.1',
    command: 'pi',
    file: 'node_modules/.bin/pi',
    tests: 'thorough'
  },
  aider: {
    registry: 'PyPI',
    name: 'aider-chat',
    version: '0.86.2',
    command: 'aider',
    file: 'bin/aider',
    tests: 'thorough'
  },
  cline: {
    registry: 'npm',
    name: 'cline',
    version: '3.0.65',
    command: 'cline',
    file: 'node_modules/.bin/cline',
    tests: 'long'
  },
  continue: {
    registry: 'npm',
    name: '@continuedev/cli',
    version: '1.5.47',
    command: 'cn',
    file: 'node_modules/.bin/cn',
    tests: 'long'
  },
  vibe: {
    registry: 'PyPI',
    name: 'mistral-vibe',
    version: '3.0.2',
    command: 'vibe',
    file: 'bin/vibe',
    tests: 'long',
    python: 12
  },
  'mini-swe-agent': {
    registry: 'PyPI',
    name: 'mini-swe-agent',
    version: '2.4.6',
    command: 'mini',
    file: 'bin/mini',
    tests: 'long'
  },
  openhands: {
    registry: 'PyPI',
    name: 'openhands',
    version: '1.16.0',
    command: 'openhands',
    file: 'bin/openhands',
    tests: 'long',
    python: 12
  }
} as const satisfies Record<string, AgentPackage>
export type AgentName = keyof typeof AGENTS

/** Names the installed version and its place, because programs in Python do not work elsewhere. Written last. */
export const versionFile = (agent: AgentName) => join(AGENTS_FOLDER, agent, 'installed.txt')
export const versionText = ({ name, version }: AgentPackage) =>
  `${name} ${version}, before ${RELEASED_BEFORE}, in ${AGENTS_FOLDER}\n`

export function isInstalled(agent: AgentName): boolean {
  const file = versionFile(agent)
  return existsSync(file) && readFileSync(file, 'utf8') === versionText(AGENTS[agent])
}
