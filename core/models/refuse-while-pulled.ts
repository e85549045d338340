import type { Downloads } from '../contracts/downloads.ts'
import { CorralError } from '../errors.ts'
import { bareName, type ModelName } from './model-name.ts'

/**
 * Nothing else may become a model of this name while it is being pulled.
 * @throws CorralError `model_exists`
 */
export function refuseWhilePulled(downloads: Downloads, name: ModelName): void {
  const bare = bareName(name)
  const going = downloads
    .list()
    .filter(({ state }) => state === 'downloading' || state === 'storing')
    .find(({ model }) => model.toLowerCase().startsWith(`${bare}:`.toLowerCase()))
  if (!going) return
  throw new CorralError(
    'model_exists',
    `"${bare}" is being pulled from ${going.origin}. Choose another name, or cancel that pull first with ` +
      `"corral pulls cancel ${going.model}".`,
    { param: 'model' }
  )
}
