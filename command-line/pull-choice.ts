import { formatBytes } from '../core/system/bytes.ts'
import { isObject } from '../core/system/json-object.ts'
import { Interrupted, interruption } from './command-failure.ts'
import { atTerminal } from './confirm.ts'
import { printable } from './output.ts'
import { ServerRefusal } from './server-client.ts'

/** A model that a name may refer to: the label after the colon, and the full name to pull. */
interface PullChoice {
  label: string
  size: number
  model: string
}

/**
 * Runs work on a hub's model. If its name is ambiguous, asks the user to pick a model.
 * @param work receives the name, or the name of the chosen model
 * @throws errors of `work`; Interrupted if nothing is picked
 */
export async function withChosenModel<T>(model: string, work: (model: string) => Promise<T>): Promise<T> {
  try {
    return await work(model)
  } catch (error) {
    const choices = parseChoices(error)
    if (choices.length === 0 || !atTerminal()) throw error
    return await work(await pick(printable(model), choices))
  }
}

function parseChoices(error: unknown): PullChoice[] {
  const found = error instanceof ServerRefusal ? error.details.choices : undefined
  if (!Array.isArray(found)) return []
  return found.filter(
    choice => isObject(choice) && typeof choice.model === 'string' && typeof choice.label === 'string'
  )
}

async function pick(model: string, choices: PullChoice[]): Promise<string> {
  const { select, isCancel } = await import('@clack/prompts')
  const picked = await select({
    message: `Several models match ${model}. Which one?`,
    options: choices.map(({ label, size, model }) => ({
      value: model,
      label: printable(label),
      ...(size > 0 && { hint: formatBytes(size) })
    })),
    maxItems: 12,
    output: process.stderr,
    signal: interruption()
  })
  interruption().throwIfAborted()
  if (isCancel(picked)) throw new Interrupted(130)
  return picked
}
