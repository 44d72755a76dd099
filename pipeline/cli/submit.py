"""The script for `spark-submit`: it runs the commands of `duemq spark` in an existing Spark.

    spark-submit --master spark://host:7077 --archives environment.tar.gz#environment \\
        $(duemq spark script) schedule /shared/reminders ...
"""

from __future__ import annotations

from duemq.pipeline.cli.app import app

if __name__ == "__main__":
    app(prog_name="duemq spark")
