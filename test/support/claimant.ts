import { claimDataDirectory, DataDirectoryError } from '../../core/system/data-directory.ts'
import { dataPaths } from '../../core/system/data-paths.ts'

/** Claims the data directory `argv[2]` with the models folder `argv[3]`, prints the result, and keeps running. */
try {
  await claimDataDirectory(dataPaths(process.argv[2], process.argv[3]), { address: 'http://127.0.0.1:1', version: '0' })
  console.log('claimed')
} catch (error) {
  console.log(error instanceof DataDirectoryError ? error.reason : String(error))
}
setInterval(() => {}, 1000)
