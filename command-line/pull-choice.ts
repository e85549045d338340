import { formatBytes } from '../core/system/bytes.ts'
import { isObject } from '../core/system/json-object.ts'
import { Interrupted, interruption } from './command-failure.ts'
import { atTerminal } from './confirm.ts'
import { printable } from './output.ts'
import { ServerRefusal } from './server-client.ts'

/** One of the models that a name may mean: what to write after the colon, and the whole name to pull it by. */
interface PullChoice {
  label: string
  size: number
  model: string
}

/**
 * Does something with a model of a hub. If its name may mean several models, the person at the terminal picks one.
 * @param work gets the name, and after a choice the name of the chosen one
 * @throws what `work` throws; Interrupted if nothing is picked
 */
export async function withChosenModel<T>(model: string, work: (model: string) => Promise<T>): Promise<T> {
  try {
    return await work(model)
  } catch (error) {
    const choices = choicesOf(error)
    if (choices.length === 0 || !atTerminal()) throw error
    return await work(await pick(printable(model), choices))
  }
}

function choicesOf(error: unknown): PullChoice[] {
  const found = error instanceof ServerRefusal ? error.details.choices : undefined
  if (!Array.isArray(found)) return []
  return found.filter(
    choice => isObject(choice) && typeof choice.model === 'string' && typeof choice.label === 'string'
  )
}

async function pick(model: string, choices: PullChoice[]): Promise<string> {
  const { select, isCancel } = await import('@clack/prompts')
  const picked = await select({
    message: `${model} has several models. Which one?`,
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
