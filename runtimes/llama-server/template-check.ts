import { mkdtemp, rm, writeFile } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import type { Build } from '../../core/contracts/builds.ts'
import { CorralError } from '../../core/errors.ts'
import { ToolError } from '../../core/system/child-process.ts'
import { knownFlags, type QueryOptions, runForLines } from './server-facts.ts'

/** llama-server logs in another thread, and its last lines may be lost when it exits. It is then asked again. */
const MAX_ATTEMPTS = 4
/** Milliseconds for a template. It usually takes a few tens of milliseconds. */
const CHECK_TIMEOUT_MS = 10_000
/** A template is a program and may fill the memory. */
const MAX_CHECK_MEMORY = 512 * 2 ** 20
const REFUSED = /the supplied chat template is not supported/
/** Lines that show the reason, the most precise one first. */
const REASONS = [/^Error: (?:Jinja Exception: )?(.+)/, /common_chat_templates_init: error: (?:parser: )?(.+)/]
const PLACE = /^While executing \w+ at (line \d+, column \d+)/

/**
 * Checks a chat template with llama-server, which renders it before it looks for a model. It gets none, so it exits.
 * @throws CorralError `invalid_request` with llama.cpp's reason
 */
export async function checkTemplate(build: Build, template: string, options: QueryOptions): Promise<void> {
  const { server } = build.executables
  const flags = await knownFlags(build, server, options)
  if (!flags?.has('--chat-template-file')) return
  const folder = await mkdtemp(join(tmpdir(), 'corral-template-'))
  try {
    const file = join(folder, 'chat-template.jinja')
    await writeFile(file, template, { mode: 0o600 })
    const jinja = flags.has('--jinja') ? ['--jinja'] : []
    const args = ['--model', join(folder, 'none.gguf'), ...jinja, '--chat-template-file', file]
    let fault: string | undefined = ''
    for (let attempt = 0; fault === '' && attempt < MAX_ATTEMPTS; attempt++) {
      fault = await findFault(() =>
        runForLines(server, args, { ...options, timeout: CHECK_TIMEOUT_MS, maxMemory: MAX_CHECK_MEMORY })
      )
    }
    if (fault === undefined) return
    const message = `llama.cpp cannot use the chat template${fault && `: ${fault}`}. Correct the template, or remove it to use the model's own.`
    throw new CorralError('invalid_request', message, { param: 'template' })
  } finally {
    await rm(folder, { recursive: true, force: true })
  }
}

/** Returns llama-server's objection to a template: undefined without one, empty if it gives no reason. */
async function findFault(run: () => Promise<unknown>): Promise<string | undefined> {
  try {
    await run()
    return undefined
  } catch (error) {
    const cause = error instanceof Error ? error.cause : undefined
    if (!(cause instanceof ToolError)) throw error
    if (cause.exitCode === undefined) return cause.message.replace(/\.$/, '')
    return templateFault(cause.tail)
  }
}

/** Finds the objection in the lines that it printed, as `findFault`. Pure. */
function templateFault(lines: readonly string[]): string | undefined {
  if (!lines.some(line => REFUSED.test(line))) return undefined
  const reason = REASONS.flatMap(pattern => lines.map(line => pattern.exec(line)?.[1])).find(text => text !== undefined)
  const place = lines.map(line => PLACE.exec(line)?.[1]).find(text => text !== undefined)
  return reason === undefined ? '' : [place, reason].filter(Boolean).join(': ').replace(/\.$/, '')
}
