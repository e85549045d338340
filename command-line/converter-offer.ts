import { failure } from './command-failure.ts'
import { printNote } from './output.ts'
import { streamWork } from './progress-display.ts'
import { atTerminal, confirm } from './questions.ts'
import { type ServerClient, ServerRefusal } from './server-client.ts'

/** Installs the Python packages that convert SafeTensors models, and shows progress. */
export async function installConverter(client: ServerClient): Promise<void> {
  const labels = { first: 'preparing the converter', what: 'installation of the converter', unit: 'parts' } as const
  await streamWork(client, '/api/conversion/install', {}, labels)
  printNote('The converter for SafeTensors models is installed.')
}

/**
 * Runs work that may convert a model. If the converter is missing, asks to install it and then runs the work again.
 * @param yes installs it without asking
 * @throws errors of `work`, or CommandFailure if the user declines
 */
export async function withConverter<T>(client: ServerClient, yes: boolean, work: () => Promise<T>): Promise<T> {
  try {
    return await work()
  } catch (error) {
    if (!(error instanceof ServerRefusal) || error.code !== 'conversion_not_installed') throw error
    if (!yes) {
      if (!atTerminal()) throw error
      printNote(error.message)
      if (!(await confirm('Install them now?', true))) {
        throw failure('Nothing was installed. Install it later with: corral conversion install')
      }
    }
    await installConverter(client)
    return await work()
  }
}
