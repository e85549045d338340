import { CommandFailure, EXIT } from './command-failure.ts'
import { atTerminal, confirm } from './confirm.ts'
import { printNote } from './output.ts'
import { streamWork } from './progress-display.ts'
import { type ServerClient, ServerRefusal } from './server-client.ts'

/** Installs the Python packages that convert SafeTensors models, and shows the progress. */
export async function installConverter(client: ServerClient): Promise<void> {
  const labels = { first: 'preparing the converter', what: 'installation of the converter', unit: 'parts' } as const
  await streamWork(client, '/api/conversion/install', {}, labels)
  printNote('The converter for SafeTensors models is installed.')
}

/**
 * Does something that may convert a model. If the converter is not installed, the person at the terminal is asked whether
 * to install it, and it is done again.
 * @param yes whether it is installed without asking
 * @throws what `work` throws; CommandFailure if the converter is not wanted
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
        throw new CommandFailure(EXIT.failure, 'Nothing was installed. To do it later: corral conversion install')
      }
    }
    await installConverter(client)
    return await work()
  }
}
