import type { PlanReply } from '../core/contracts/native-records.ts'
import { formatBytes } from '../core/system/bytes.ts'
import { chatModels } from './chat-commands.ts'
import { CommandFailure, EXIT, failure } from './command-failure.ts'
import { pullWithProgress, roomText, withChosenModel } from './commands/pull.ts'
import { formatPairs, printable, printNote } from './output.ts'
import { showProgress } from './progress-display.ts'
import { atTerminal, confirm, pickOne } from './questions.ts'
import { type ServerClient, ServerRefusal } from './server-client.ts'

/** Asks the user to pick a local model. @throws CommandFailure if there is none */
export async function pickModel(client: ServerClient): Promise<string> {
  const models = await chatModels(client)
  if (models.length === 0) {
    const advice = 'Get one with: corral pull <owner>/<name>, or corral run <owner>/<name>'
    throw new CommandFailure(EXIT.notFound, `This server has no chat model. ${advice}`)
  }
  const newestFirst = models.toSorted((a, b) => b.modified_at.localeCompare(a.modified_at))
  return await pickOne(
    'Which model?',
    newestFirst.map(({ name, size }) => ({ value: name, label: name, size }))
  )
}

/**
 * Offers to pull a missing model.
 * @param missing the server's refusal
 * @param yes pulls it without asking
 * @returns the name of the pulled model, with its variant if there was a choice
 * @throws CommandFailure if the user declines or the model cannot be pulled
 */
export async function offerPull(client: ServerClient, model: string, missing: ServerRefusal, yes: boolean) {
  if (!atTerminal() && !yes) {
    const pull = `corral pull ${model}`
    // A name without an owner identifies no model at a hub, unless the server's message suggests a pull.
    if (!model.includes('/') && !missing.message.includes(pull)) throw missing
    const command = missing.message.includes(pull) ? '' : ` Get it with: ${pull}.`
    throw new CommandFailure(missing.exitCode, `${missing.message}${command} Add --yes to pull it now.`, missing)
  }
  return await withChosenModel(model, async chosen => {
    const plan = await getPlan(client, chosen, missing)
    if (!yes) {
      printNote(printable(describe(plan, chosen)))
      if (!plan.disk.fits) {
        const advice = 'Free some space, or choose another disk with CORRAL_MODELS.'
        throw failure(`There is not enough disk space for ${chosen}. ${advice}`)
      }
      if (!(await confirm('Pull it now?', plan.memory.fits)))
        throw new CommandFailure(EXIT.notFound, `${chosen} was not pulled. Pull it later with: corral pull ${chosen}`)
    }
    // The user has already typed the next step.
    await pullWithProgress(client, chosen, { model: chosen }, false)
    return chosen === model ? model : `${plan.model}:${plan.label}`
  })
}

/** Returns the plan of a pull. @throws CommandFailure with the hub's message if there is nothing */
async function getPlan(client: ServerClient, model: string, missing: ServerRefusal): Promise<PlanReply> {
  const progress = await showProgress(`looking for ${model}, which is not on this machine`, { plain: 'nothing' })
  try {
    return await client.json<PlanReply>('POST', '/api/pull', { model, dry_run: true })
  } catch (error) {
    if (!(error instanceof ServerRefusal)) throw error
    const here = missing.message.replace(/[;.] "corral pull [^"]*" downloads it\.$/, '.')
    const message = `${here} It cannot be pulled: ${error.message}`
    throw new ServerRefusal(message, missing.code, error.details)
  } finally {
    progress.clear()
  }
}

function describe({ label, size, reason, repository, memory, disk, warnings }: PlanReply, model: string): string {
  return [
    `${model} is not on this machine. It can be pulled:`,
    formatPairs([
      ['size', formatBytes(size)],
      ['variant', label],
      ['chosen', reason],
      ['from', repository.address],
      ['memory', roomText(memory, 'available')],
      ['disk', roomText(disk, 'free')]
    ]),
    ...warnings.map(warning => `warning: ${warning}`)
  ].join('\n')
}
